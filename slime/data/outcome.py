"""Outcome: what the ledger is told of a sample, a few numbers in place of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from slime.data.sample import Sample


class Outcome(NamedTuple):
    """Of one sample; of one that fanned out, the tokens of all its parts and the mean of their rewards."""

    id: int | None  # Sample.index; None where nobody gave one
    group: int | None
    tokens: int
    response_tokens: int
    reward: float | None = None
    weight_versions: tuple[str, ...] = ()
    removed: str | None = None  # why it is not trained on, though it is in a batch


def outcomes(
    samples: Iterable[tuple[Sample, float | None]], reasons: Iterable[str | None] | None = None
) -> list[Outcome]:
    """Of samples with their rewards. `reasons`: why each is removed, or None. A sample is removed when all of its parts
    are."""
    samples = list(samples)
    reasons = [None] * len(samples) if reasons is None else reasons
    of_sample: dict[object, list[tuple[Sample, float | None, str | None]]] = {}
    for (sample, reward), reason in zip(samples, reasons, strict=True):
        number = ("unnumbered", id(sample)) if sample.index is None else sample.index
        of_sample.setdefault(number, []).append((sample, reward, reason))
    return [_whole(*parts[0]) if len(parts) == 1 else _of_parts(parts) for parts in of_sample.values()]


def _whole(sample: Sample, reward: float | None, reason: str | None) -> Outcome:
    versions = tuple(map(str, sample.weight_versions))
    return Outcome(
        sample.index, sample.group_index, len(sample.tokens), sample.response_length, reward, versions, reason
    )


def _of_parts(parts: Sequence[tuple[Sample, float | None, str | None]]) -> Outcome:
    made = [_whole(*part) for part in parts]
    rewards = [part.reward for part in made if part.reward is not None]
    return Outcome(
        made[0].id,
        made[0].group,
        sum(part.tokens for part in made),
        sum(part.response_tokens for part in made),
        sum(rewards) / len(rewards) if rewards else None,
        tuple(dict.fromkeys(version for part in made for version in part.weight_versions)),
        made[0].removed if all(part.removed for part in made) else None,
    )


def reward_of(sample: Sample, key: str | None) -> float | None:
    """The reward as a number, where it is one yet; `key` is that of --reward-key."""
    value: Any = sample.reward.get(key) if isinstance(sample.reward, dict) else sample.reward
    return float(value) if isinstance(value, int | float) else None
