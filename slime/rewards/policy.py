"""What becomes of a reward that was not had: asked for again, then --rm-failure-policy.

Held: a failure is never silent: it ends the rollout, or is an Outcome that says so; a mistake (RewardError that is no
RewardFailure: a reward that is no number, a label that is not there) ends the rollout whatever the policy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slime.rewards.errors import RewardFailure
from slime.rewards.hub import Reward, grade, grade_group

FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0  # seconds between two tries
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failure` says why the reward was not had, without naming the sample, and is None when it was. A reward that was
    not had is 0."""

    reward: Reward
    retries: int
    failure: str | None = None


async def settle(args: Any, samples: Sequence[Any], *, evaluation: bool = False) -> list[Outcome]:
    """Grades the samples of one prompt. Raises RewardError at the first mistake, and failure if that is the policy."""
    if args.group_rm and args.custom_rm_path:
        rewards, retries, failure = await _tried(args, lambda: grade_group(args, samples, evaluation=evaluation))
        if rewards is None:
            rewards = [nothing(args, evaluation)] * len(samples)
        return [Outcome(reward, retries, failure) for reward in rewards]
    tasks = [asyncio.ensure_future(_one(args, sample, evaluation)) for sample in samples]
    try:
        return await asyncio.gather(*tasks)
    finally:  # when one fails, nobody waits for the others
        for task in tasks:
            task.cancel()


async def _one(args: Any, sample: Any, evaluation: bool) -> Outcome:
    reward, retries, failure = await _tried(args, lambda: grade(args, sample, evaluation=evaluation))
    return Outcome(nothing(args, evaluation) if failure else reward, retries, failure)


def nothing(args: Any, evaluation: bool) -> Reward:
    """A reward of 0, in a dict where rewards are."""
    key = args.eval_reward_key if evaluation else args.reward_key
    return 0.0 if key is None else {key: 0.0}


async def _tried(args: Any, ask: Callable[[], Awaitable[T]]) -> tuple[T | None, int, str | None]:
    """(the answer, how often it was asked for again, the last failure if there is no answer)."""
    wait, retries = FIRST_WAIT, 0
    while True:
        try:
            return await ask(), retries, None
        except RewardFailure as error:
            if retries == args.rm_retries:
                if args.rm_failure_policy == "stop":
                    raise
                return None, retries, error.cause
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        wait, retries = min(2 * wait, LONGEST_WAIT), retries + 1
