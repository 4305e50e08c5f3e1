"""The data buffer: one actor that hands out prompt groups and takes back unfinished ones, so that all who generate share it."""

from __future__ import annotations

import ray

from slime.config import Config
from slime.data.sample import Sample
from slime.data.source import DataSource
from slime.rollout.producer import open_source

ANSWER_S = 120.0


class BufferActor:
    """The data source of a run, in a process of its own."""

    source: DataSource

    def open(self, config: Config) -> int:
        """Reads the prompts; returns their number. Not in the constructor, so that bad data is an error and no dead actor."""
        self.source = open_source(config)
        return len(self.source)

    def get_samples(self, num_groups: int) -> list[list[Sample]]:
        return self.source.get_samples(num_groups)

    def add_samples(self, groups: list[list[Sample]]) -> None:
        self.source.add_samples(groups)

    def save(self, rollout_id: int) -> None:
        self.source.save(rollout_id)

    def load(self, rollout_id: int) -> None:
        self.source.load(rollout_id)

    def length(self) -> int:
        return len(self.source)


class Buffer:
    """The actor as a data source: what rollout functions are given. Picklable."""

    def __init__(self, actor: ray.actor.ActorHandle) -> None:
        self.actor = actor

    @classmethod
    def start(cls) -> Buffer:
        return cls(ray.remote(BufferActor).options(name="data-buffer", num_cpus=0).remote())

    def open(self, config: Config) -> ray.ObjectRef:
        return self.actor.open.remote(config)

    def get_samples(self, num_groups: int) -> list[list[Sample]]:
        return ray.get(self.actor.get_samples.remote(num_groups), timeout=ANSWER_S)

    def add_samples(self, groups: list[list[Sample]]) -> None:
        ray.get(self.actor.add_samples.remote(groups), timeout=ANSWER_S)

    def save(self, rollout_id: int) -> None:
        ray.get(self.actor.save.remote(rollout_id), timeout=ANSWER_S)

    def load(self, rollout_id: int) -> ray.ObjectRef:
        return self.actor.load.remote(rollout_id)

    def __len__(self) -> int:
        return ray.get(self.actor.length.remote(), timeout=ANSWER_S)
