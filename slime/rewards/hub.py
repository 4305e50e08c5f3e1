"""Which grader grades: --custom-rm-path, else the sample's own metadata["rm_type"], else --rm-type.

Invariants: a reward that is returned is sound (`score` accepts it); a user's function can neither block the event
loop, when it is a plain function, nor hold up the rollout beyond --rm-timeout; whatever goes wrong is a RewardError
naming the sample.
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable, Sequence
from typing import Any

from slime.rewards.catalogue import GRADERS, judged
from slime.rewards.errors import RewardError, RewardFailure
from slime.rewards.score import score
from slime.rewards.threads import TooLate, call_within

Reward = float | dict[str, Any]


async def grade(args: Any, sample: Any, *, evaluation: bool = False) -> Reward:
    """The reward of one sample: a number, or a dict in which --reward-key, or --eval-reward-key, is a number."""
    if args.custom_rm_path:
        reward = await call_custom(args, sample, sample.name)
    else:
        rm_type = rm_type_of(args, sample)
        try:
            reward = (await judged(args, sample, rm_type)).reward
        except RewardError:
            raise
        except Exception as error:  # a disk that is full, say
            raise RewardFailure(sample.name, f"{rm_type} raised {type(error).__name__}: {error}") from error
    score(sample.name, reward, reward_key(args, evaluation))
    return reward


async def grade_group(args: Any, samples: Sequence[Any], *, evaluation: bool = False) -> list[Reward]:
    """--group-rm: the rewards of the samples of one prompt from one call of the custom function."""
    name = f"group {samples[0].group_index} ({', '.join(sample.name for sample in samples)})"
    rewards = await call_custom(args, list(samples), name)
    try:
        if isinstance(rewards, dict | str | set):
            raise TypeError
        rewards = list(rewards)
    except TypeError:
        raise RewardError(
            f"{name}: {args.custom_rm_path} returned {rewards!r:.200}, not a list of one reward for each sample"
        ) from None
    if len(rewards) != len(samples):
        raise RewardError(f"{name}: {args.custom_rm_path} returned {len(rewards)} rewards for {len(samples)} samples")
    for sample, reward in zip(samples, rewards, strict=True):
        score(sample.name, reward, reward_key(args, evaluation))
    return rewards


def rm_type_of(args: Any, sample: Any) -> str:
    rm_type = (sample.metadata or {}).get("rm_type") or args.rm_type
    if rm_type is None:
        raise RewardError(
            f"{sample.name}: nothing says how to grade it; give --rm-type ({', '.join(GRADERS)}) or --custom-rm-path"
        )
    return rm_type


def reward_key(args: Any, evaluation: bool) -> str | None:
    return args.eval_reward_key if evaluation else args.reward_key


async def call_custom(args: Any, subject: Any, name: str) -> Any:
    """Asks the user's function, asynchronous or not, about a sample or a list of them, which messages call `name`."""
    path, deadline = args.custom_rm_path, args.rm_timeout
    function = load(path)
    late = f"{path} did not return within {deadline:g} s (--rm-timeout)"
    start = time.monotonic()
    try:
        answer = await call_within(deadline, function, args, subject)
    except TooLate as error:
        raise RewardFailure(name, late) from error
    except Exception as error:
        raise RewardFailure(name, f"{path} raised {type(error).__name__}: {error}") from error
    if time.monotonic() - start > deadline:  # of a function that holds up the event loop no timer can go off
        raise RewardFailure(name, late)
    return answer


def load(path: str) -> Callable[..., Any]:
    try:
        function = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise RewardError(f"--custom-rm-path {path}: {error}") from error
    if not callable(function):
        raise RewardError(f"--custom-rm-path {path}: is not a function but {function!r}")
    return function
