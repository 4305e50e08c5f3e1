"""Outcome: what the ledger is told of a sample, a few numbers in place of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slime.data.sample import Sample


@dataclass(frozen=True, slots=True)
class Outcome:
    """`id`: the number of the sample, None for one that no data source gave a number. Of a sample that fanned out, the tokens
    of all its parts and the mean of their rewards."""

    id: int | None
    group: int | None
    tokens: int
    response_tokens: int
    reward: float | None = None
    weight_versions: tuple[str, ...] = ()
    removed: str | None = None  # why it is not trained on, though it is finished


def outcome(parts: Sequence[Sample], rewards: Sequence[float | None], removed: str | None = None) -> Outcome:
    """Of one sample, whose `parts` have one reward each."""
    known = [reward for reward in rewards if reward is not None]
    return Outcome(
        parts[0].index,
        parts[0].group_index,
        sum(len(part.tokens) for part in parts),
        sum(part.response_length for part in parts),
        sum(known) / len(known) if known else None,
        tuple(dict.fromkeys(str(version) for part in parts for version in part.weight_versions)),
        removed,
    )


def outcomes(samples: Iterable[Sample], rewards: Iterable[float | None], removed: Iterable[str | None]) -> list[Outcome]:
    """One for each sample that was issued. One of which some parts are trained on is not removed."""
    of_sample: dict[object, list[tuple[Sample, float | None, str | None]]] = {}
    for entry in zip(samples, rewards, removed, strict=True):
        sample = entry[0]
        of_sample.setdefault(id(sample) if sample.index is None else (sample.index,), []).append(entry)
    made = []
    for entries in of_sample.values():
        parts, of_parts, reasons = zip(*entries, strict=True)
        made.append(outcome(parts, of_parts, reasons[0] if all(reasons) else None))
    return made
