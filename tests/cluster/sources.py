"""Data sources as users write them, for --data-source-path."""

from __future__ import annotations

import time
from typing import Any

from slime.data.sample import Sample


class Counting:
    """Groups of two samples, numbered from 0."""

    def __init__(self, args: Any) -> None:
        self.groups = 0

    def get_samples(self, n: int) -> list[list[Sample]]:
        self.groups += n
        groups = range(self.groups - n, self.groups)
        return [[Sample(g, 2 * g + k, prompt="?", tokens=[1], response_length=0) for k in (0, 1)] for g in groups]

    def add_samples(self, groups: list[list[Sample]]) -> None: ...
    def save(self, id: int) -> None: ...
    def load(self, id: int) -> None: ...
    def __len__(self) -> int:
        return 8


class Failing(Counting):
    """As one is that asks a server which has gone."""

    def get_samples(self, n: int) -> list[list[Sample]]:
        raise ConnectionError("db gone")


class Hanging(Counting):
    """As one is that waits for a file server."""

    def get_samples(self, n: int) -> list[list[Sample]]:
        time.sleep(3600)
        return []
