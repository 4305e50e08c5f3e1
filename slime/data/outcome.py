"""Outcome: what the ledger is told of a sample, a few numbers in place of its tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slime.data.sample import Sample


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one sample; of one that fanned out, the tokens of all its parts and the mean of their rewards."""

    id: int | None  # Sample.index; None where nobody gave one
    group: int | None
    tokens: int
    response_tokens: int
    reward: float | None = None
    weight_versions: tuple[str, ...] = ()
    removed: str | None = None  # why it is not trained on, though it is in a batch


def outcomes(samples: Iterable[tuple[Sample, float | None]], reasons: Iterable[str | None] | None = None) -> list[Outcome]:
    """Of samples with their rewards. `reasons`: why each is removed, or None. A sample is removed when all of its parts
    are."""
    samples = list(samples)
    reasons = [None] * len(samples) if reasons is None else reasons
    of_sample: dict[object, list[tuple[Sample, float | None, str | None]]] = {}
    for (sample, reward), reason in zip(samples, reasons, strict=True):
        number = ("unnumbered", id(sample)) if sample.index is None else sample.index
        of_sample.setdefault(number, []).append((sample, reward, reason))
    return [_outcome(*zip(*parts, strict=True)) for parts in of_sample.values()]


def _outcome(parts: tuple[Sample, ...], rewards: tuple[float | None, ...], reasons: tuple[str | None, ...]) -> Outcome:
    known = [reward for reward in rewards if reward is not None]
    return Outcome(
        parts[0].index,
        parts[0].group_index,
        sum(len(part.tokens) for part in parts),
        sum(part.response_length for part in parts),
        sum(known) / len(known) if known else None,
        tuple(dict.fromkeys(str(version) for part in parts for version in part.weight_versions)),
        reasons[0] if all(reasons) else None,
    )


def reward_of(sample: Sample, key: str | None) -> float | None:
    """The reward as a number, where it is one yet; `key` is that of --reward-key."""
    value: Any = sample.reward.get(key) if isinstance(sample.reward, dict) else sample.reward
    return float(value) if isinstance(value, int | float) else None
