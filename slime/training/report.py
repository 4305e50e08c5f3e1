"""Metrics of one rollout's training, made equal on all ranks by one small collective.

Each rank adds what it knows under the same keys in the same order; values may stay on the device until `reduce`, which
moves all of them in one go.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from slime.training.parallel import Parallel


class Report:
    """Sums and maxima over ranks, by (section, name); a section is "rollout" or the index of an optimizer step, say."""

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel
        self.keys: list[tuple[object, str]] = []
        self.values: list[Tensor | float] = []
        self.is_max: list[bool] = []

    def add(self, section: object, name: str, value: Tensor | float, *, maximum: bool = False) -> None:
        """What this rank contributes: 0 where another rank of its model says the same."""
        self.keys.append((section, name))
        self.values.append(value)
        self.is_max.append(maximum)

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Seconds of the block, and of those of the same name before, as perf/`name`_time: that of the slowest rank."""
        start = time.perf_counter()
        yield
        self.parallel.device.synchronize()
        seconds, key = time.perf_counter() - start, ("perf", f"{name}_time")
        if key in self.keys:
            self.values[self.keys.index(key)] += seconds
        else:
            self.add(*key, seconds, maximum=True)

    def reduce(self) -> dict[object, dict[str, float]]:
        """Section -> name -> value over all ranks. Collective."""
        tensors = [value.double() for value in self.values if isinstance(value, Tensor)]
        moved = iter(torch.stack(tensors).tolist() if tensors else [])
        numbers = [next(moved) if isinstance(value, Tensor) else float(value) for value in self.values]
        vector = torch.tensor(numbers, dtype=torch.float64, device=self.parallel.device.torch)
        by_rank = self.parallel.gather(vector)
        sums, maxima = by_rank.sum(dim=0).tolist(), by_rank.amax(dim=0).tolist()
        sections: dict[object, dict[str, float]] = {}
        for (section, name), total, largest, is_max in zip(self.keys, sums, maxima, self.is_max, strict=True):
            sections.setdefault(section, {})[name] = largest if is_max else total
        return sections
