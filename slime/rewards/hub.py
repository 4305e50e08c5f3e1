"""Which grader grades: --custom-rm-path, else the sample's own metadata["rm_type"], else --rm-type.

Invariants: a reward that is returned is sound (`score` accepts it); a user's function can neither block the event
loop, when it is a plain function, nor hold up the rollout beyond --rm-timeout; whatever goes wrong is a RewardError
naming the sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pkgutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

from slime.rewards.errors import RewardError
from slime.rewards.exact_match import exact_match
from slime.rewards.random_reward import random_reward
from slime.rewards.score import score

Reward = float | dict[str, Any]

BUILT_IN: dict[str, Callable[[Any, Any], float]] = {"exact_match": exact_match, "random": random_reward}


async def grade(args: Any, sample: Any, *, evaluation: bool = False) -> Reward:
    """The reward of one sample: a number, or a dict in which --reward-key, or --eval-reward-key, is a number."""
    if args.custom_rm_path:
        reward = await call_custom(args, sample, sample.name)
    else:
        reward = built_in(args, sample)(args, sample)
    score(sample.name, reward, reward_key(args, evaluation))
    return reward


async def grade_group(args: Any, samples: Sequence[Any], *, evaluation: bool = False) -> list[Reward]:
    """The rewards of the samples of one prompt; with --group-rm from one call of the custom function."""
    if not (args.group_rm and args.custom_rm_path):
        tasks = [asyncio.ensure_future(grade(args, sample, evaluation=evaluation)) for sample in samples]
        try:
            return await asyncio.gather(*tasks)
        finally:  # when one fails, nobody waits for the others
            for task in tasks:
                task.cancel()
    name = f"group {samples[0].group_index} ({', '.join(sample.name for sample in samples)})"
    rewards = await call_custom(args, list(samples), name)
    try:
        rewards = list(rewards)
    except TypeError:
        raise RewardError(
            f"{name}: {args.custom_rm_path} returned {rewards!r}, not one reward for each sample"
        ) from None
    if len(rewards) != len(samples):
        raise RewardError(f"{name}: {args.custom_rm_path} returned {len(rewards)} rewards for {len(samples)} samples")
    for sample, reward in zip(samples, rewards, strict=True):
        score(sample.name, reward, reward_key(args, evaluation))
    return rewards


def built_in(args: Any, sample: Any) -> Callable[[Any, Any], float]:
    rm_type = (sample.metadata or {}).get("rm_type") or args.rm_type
    known = ", ".join(BUILT_IN)
    if rm_type is None:
        raise RewardError(f"{sample.name}: nothing says how to grade it; give --rm-type ({known}) or --custom-rm-path")
    if rm_type not in BUILT_IN:
        raise RewardError(f"{sample.name}: there is no reward type {rm_type!r}, only {known}")
    return BUILT_IN[rm_type]


def reward_key(args: Any, evaluation: bool) -> str | None:
    return args.eval_reward_key if evaluation else args.reward_key


async def call_custom(args: Any, subject: Any, name: str) -> Any:
    """Asks the user's function, asynchronous or not, about a sample or a list of them, which messages call `name`."""
    path, deadline = args.custom_rm_path, args.rm_timeout
    function = load(path)
    call = function(args, subject) if inspect.iscoroutinefunction(function) else in_thread(function, args, subject)
    try:
        async with asyncio.timeout(deadline) as timer:
            return await call
    except Exception as error:
        if timer.expired():
            raise RewardError(f"{name}: {path} did not return within {deadline:g} s (--rm-timeout)") from error
        raise RewardError(f"{name}: {path} raised {type(error).__name__}: {error}") from error


def load(path: str) -> Callable[..., Any]:
    try:
        function = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise RewardError(f"--custom-rm-path {path}: {error}") from error
    if not callable(function):
        raise RewardError(f"--custom-rm-path {path}: is not a function but {function!r}")
    return function


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Runs a plain function in a daemon thread, which ends with the process even when the function never returns."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if not done.done():  # the caller may have given up
            done.set_result((result, error))

    def run() -> None:
        result, error = None, None
        try:
            result = function(*args)
        except Exception as raised:
            error = raised
        except BaseException as raised:  # sys.exit() in a reward ends the reward, not the rollout without a word
            error = RuntimeError(repr(raised))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="reward", daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return await result if inspect.isawaitable(result) else result
