"""The label of a sample, for graders that cannot do without."""

from __future__ import annotations

from typing import Any

from slime.rewards.errors import RewardError


def label_of(sample: Any) -> Any:
    """Raises RewardError where there is none."""
    if sample.label is None or sample.label == "" or sample.label == []:
        raise RewardError(f"{sample.name} has no label, and its reward compares with one: see --label-key")
    return sample.label
