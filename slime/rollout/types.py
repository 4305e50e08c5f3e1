"""What a rollout function gives back, and the error of a rollout that cannot go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from slime.data.sample import Sample

Group = Sequence[
    Sample | Sequence[Sample]
]  # of one prompt; where a sample fanned out into several, a list in its place


class RolloutError(RuntimeError):
    """A rollout that cannot go on; the message names the sample or the hook."""


@dataclass(frozen=True, slots=True)
class DynamicFilterOutput:
    """Of --dynamic-sampling-filter-path: whether a finished group is trained on, and if not, why; counted by reason."""

    keep: bool
    reason: str | None = None


@dataclass(slots=True)
class RolloutFnTrainOutput:
    """`samples`: one group a prompt; `metrics` join those of the step."""

    samples: list[Group]
    metrics: dict[str, Any] | None = None


@dataclass(slots=True)
class RolloutFnEvalOutput:
    """`data`: of each set {"rewards": [float], "truncated": [bool], "samples": [Sample]}, all of one length."""

    data: dict[str, dict[str, list[Any]]]
    metrics: dict[str, Any] | None = None


def whole_ids(samples: Iterable[Sample]) -> list[int]:
    """A number for each sample, equal for those that one sample has fanned out into: they share group and index."""
    numbers: dict[tuple[Any, ...], int] = {}
    keys = ((s.group_index, s.index) if s.index is not None else (i,) for i, s in enumerate(samples))
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def check_groups(groups: Any, path: str) -> None:
    """Raises RolloutError where what the rollout function at `path` returned are no groups of samples, or where one is
    in them twice: it would be trained on twice, or pass for a part of itself."""
    function = f"--rollout-function-path {path}"
    if not isinstance(groups, Sequence) or isinstance(groups, str):
        raise RolloutError(f"{function} returned a {type(groups).__name__}, not a list of groups of samples")
    seen: set[int] = set()
    place_of: dict[int, int] = {}  # of a group's number
    member_of: dict[int, tuple[int, int]] = {}  # of a sample's: its group's place, and its own there
    for place, group in enumerate(groups):
        if not isinstance(group, Sequence) or isinstance(group, str):
            raise RolloutError(f"{function}: group {place} is a {type(group).__name__}, not a list of samples")
        for i, member in enumerate(group):
            is_list = isinstance(member, Sequence) and not isinstance(member, str)
            for sample in member if is_list else [member]:
                if not isinstance(sample, Sample):
                    raise RolloutError(f"{function}: group {place} holds a {type(sample).__name__}, not a Sample")
                number, index = sample.group_index, sample.index
                if (
                    id(sample) in seen
                    or (number is not None and place_of.setdefault(number, place) != place)
                    or (index is not None and member_of.setdefault(index, (place, i)) != (place, i))
                ):
                    raise RolloutError(f"{function}: {sample.name} is in the batch twice")
                seen.add(id(sample))


def check_eval(data: Mapping[str, Any], path: str) -> None:
    """Raises RolloutError where what the evaluation function at `path` returned is no RolloutFnEvalOutput.data."""
    for name, results in data.items():
        whose = f"--eval-function-path {path}: eval set {name}"
        if not isinstance(results, Mapping):
            raise RolloutError(f"{whose} is a {type(results).__name__}, not a dict of rewards and truncated")
        if missing := [column for column in ("rewards", "truncated") if column not in results]:
            raise RolloutError(f"{whose} has no {missing[0]}")
        rewards, truncated, samples = results["rewards"], results["truncated"], results.get("samples") or []
        for column, values in {"rewards": rewards, "truncated": truncated, "samples": samples}.items():
            if not hasattr(values, "__len__"):
                raise RolloutError(f"{whose} has a {type(values).__name__} for its {column}, not a list")
        if not len(rewards):
            raise RolloutError(f"{whose} has no samples")
        for column, values in {"truncated": truncated, "samples": samples or rewards}.items():
            if len(values) != len(rewards):
                raise RolloutError(f"{whose} has {len(rewards)} rewards and {len(values)} {column}")
        if others := [sample for sample in samples if not isinstance(sample, Sample)]:
            raise RolloutError(f"{whose} has a {type(others[0]).__name__} among its samples")
        for reward in rewards:
            try:
                float(reward + 0)  # a text of a number is none
            except (TypeError, ValueError) as error:
                raise RolloutError(f"{whose} has {reward!r:.80} among its rewards, which is no number") from error


def flatten(groups: Iterable[Group]) -> list[Sample]:
    """All samples of all groups."""
    members = (member for group in groups for member in group)
    return [sample for member in members for sample in ([member] if isinstance(member, Sample) else member)]


def number_groups(groups: Sequence[Group]) -> None:
    """Gives samples that do not say what group they are of (users' rollout functions need not care) the number of
    others of their group, or one of its own."""
    free = untaken(sample.group_index for sample in flatten(groups))
    for group in groups:
        members = flatten([group])
        if unnumbered := [sample for sample in members if sample.group_index is None]:
            numbers = chain((sample.group_index for sample in members if sample.group_index is not None), free)
            number = next(numbers)
            for sample in unnumbered:
                sample.group_index = number


def untaken(numbers: Iterable[int | None]) -> Iterator[int]:
    """0, 1, 2 ... without those that are taken."""
    taken = set(numbers)
    return (number for number in count() if number not in taken)
