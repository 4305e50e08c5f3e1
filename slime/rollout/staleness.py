"""How old samples are, counted in weight updates, and how far ahead of training generation may be.

After every `interval` rollouts that were trained on the engines get new weights: an update. A sample is as old as its
oldest token: by how many updates the weights that made it are older than those which the engines have when its batch is
handed to training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from slime.config import Config
from slime.data.sample import Sample
from slime.rollout.types import Group, flatten


@dataclass(frozen=True, slots=True)
class Bound:
    """What may be begun, and what has to be waited for, so that nothing older than `staleness` updates is trained on.

    Held: if a batch takes what was begun first, and waits until what it leaves `fits`, then what `limit` allowed to be
    begun is never too old, in whatever order it ends.
    """

    staleness: int
    interval: int
    batch_size: int
    num_rollouts: int

    @classmethod
    def of(cls, config: Config) -> Self:
        return cls(
            config.max_weight_staleness, config.update_weights_interval, config.rollout_batch_size, config.num_rollout
        )

    def updates_before(self, rollout_id: int) -> int:
        """How many updates the weights have had that a rollout is trained on by."""
        return rollout_id // self.interval

    def limit(self, next_rollout: int, updates: int) -> int:
        """How many groups there may be at most, under way or finished, that no batch has yet. `next_rollout` is the
        first that has no batch, `updates` how many there have been so far."""
        end = min(self.last_rollout(updates) + 1, self.num_rollouts)
        return max(end - next_rollout, 0) * self.batch_size

    def last_rollout(self, begun: int) -> int:
        """The last whose batch a group may be in that was begun after `begun` updates."""
        return (begun + self.staleness + 1) * self.interval - 1

    def fits(self, left: Iterable[int], rollout_id: int) -> bool:
        """Whether all that has no batch yet when that of this rollout is taken can be in a later one in time; `left`
        says after how many updates each group was begun."""
        return all(
            i < (self.last_rollout(begun) - rollout_id) * self.batch_size for i, begun in enumerate(sorted(left))
        )


def age(group: Group, version: int) -> int:
    """Of the oldest token of a group when the engines have the weights `version`. 0 where no token says what made it:
    engines that nobody updates, and functions of users, may say anything or nothing."""
    versions = [int(v) for sample in flatten([group]) for v in sample.weight_versions if v.isdecimal()]
    return version - min(versions, default=version)


def staleness_metrics(samples: Iterable[Sample], version: int) -> dict[str, float]:
    """Of the response tokens of samples that are trained on when the engines have the weights `version`."""
    ages: dict[int, int] = {}  # age -> tokens
    for sample in samples:
        for made_by, tokens in _spans(sample):
            ages[version - made_by] = ages.get(version - made_by, 0) + tokens
    if not ages:
        return {}
    mean = sum(age * tokens for age, tokens in ages.items()) / sum(ages.values())
    return {"rollout/staleness/mean": mean, "rollout/staleness/max": max(ages)}


def _spans(sample: Sample) -> list[tuple[int, int]]:
    """(version, number of tokens); all tokens are of the oldest where it is not said which are of which."""
    versions = [int(version) for version in sample.weight_versions if version.isdecimal()]
    if not versions or not sample.response_length:
        return []
    if len(versions) != len(sample.weight_version_starts):
        return [(min(versions), sample.response_length)]
    bounds = pairwise([*sample.weight_version_starts, sample.response_length])
    return [(version, end - start) for version, (start, end) in zip(versions, bounds, strict=True)]
