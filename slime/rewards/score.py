"""A reward as the number that training uses."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from slime.rewards.errors import RewardError


def score(name: str, reward: Any, key: str | None = None) -> float:
    """The reward of the sample called `name` as a finite number; `key` picks it from a dict.

    Raises RewardError for None, NaN, infinity, a dict without the key, and whatever else is no number.
    """
    if isinstance(reward, dict):
        keys = ", ".join(sorted(map(repr, reward))) or "none"
        if key is None:
            raise RewardError(f"{name}: the reward is a dict; say which key counts with --reward-key. Its keys: {keys}")
        if key not in reward:
            raise RewardError(f"{name}: the reward has no key {key!r} (--reward-key). Its keys: {keys}")
        reward = reward[key]
    # NumPy's scalars are Real, too; those of PyTorch are not, but have `item`.
    if hasattr(reward, "item") and getattr(reward, "ndim", None) == 0:
        reward = reward.item()
    try:
        number = float(reward) if isinstance(reward, Real) else math.nan
    except OverflowError:  # of an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise RewardError(f"{name}: the reward is {reward!r:.200}, not a finite number")
    return number
