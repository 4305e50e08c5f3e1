"""One weight update, whatever the medium: stop the engines, send every tensor, let them go on.

Invariants
- A version number rises by one at each update, and every engine reports it with each token from then on.
- Nothing is generated between `begin` and `end`, and the caches of the old weights are flushed before: an engine never
  serves a mix, and never reuses keys and values of old weights.
- `push` is collective over the training ranks: all take part in gathering shards; who talks to the engines depends on
the medium.
- An engine that fails in the middle fails the update on every rank, and on all of them at the end: no rank waits for
one that gave up. The other engines stay paused then, for they may hold a mix; the next update mends that.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist

from slime.inference.control import EngineControl, call_all
from slime.inference.errors import InferenceError
from slime.training.trainer import Trainer

Bucket = list[tuple[str, torch.Tensor]]


class WeightSync(ABC):
    """Pushes a trainer's weights into `engines`, which are in the order of their devices.

    `buffer_bytes` bounds what is gathered, and held beside the model, at a time (--update-weight-buffer-size).
    """

    def __init__(self, trainer: Trainer, engines: list[EngineControl], *, buffer_bytes: int) -> None:
        self.trainer = trainer
        self.engines = engines
        self.buffer_bytes = buffer_bytes
        self.failure: InferenceError | None = None

    def push(self, version: int) -> dict[str, float]:
        """Returns perf/update_weights_time in seconds and perf/update_weights_wire_bytes, the bytes this rank sent.

        Raises InferenceError on every rank when an engine fails.
        """
        start = time.perf_counter()
        leads = dist.get_rank() == 0
        try:
            together(self._begin, takes_part=leads)
            sent_bytes = self._send(str(version))
            together(self._raise_failure)
            together(self._end, takes_part=leads)
        except InferenceError:
            self._abandon(takes_part=leads)
            raise
        return {"perf/update_weights_time": time.perf_counter() - start, "perf/update_weights_wire_bytes": sent_bytes}

    def _begin(self) -> None:
        call_all(self.engines, "pause", mode="retract")
        call_all(self.engines, "flush_cache")
        call_all(self.engines, "begin_weight_update")

    def _end(self) -> None:
        call_all(self.engines, "end_weight_update")
        call_all(self.engines, "resume")

    def _abandon(self, *, takes_part: bool) -> None:
        """Closes the update where it is open, so that another can begin."""
        for engine in self.engines if takes_part else ():
            with suppress(InferenceError):
                engine.end_weight_update()

    @abstractmethod
    def _send(self, version: str) -> int:
        """Sends every tensor inside an open update; returns the bytes that left this rank. What an
        engine may fail in is an `_attempt`."""

    def _attempt(self, action: Callable[[], None]) -> None:
        """Does what engines may fail in, unless one has: that is raised when all ranks are through."""
        if self.failure is None:
            try:
                action()
            except InferenceError as error:
                self.failure = error

    def _raise_failure(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    @abstractmethod
    def close(self) -> None:
        """Releases what outlives the process if it is not released: groups, shared memory."""


def together(action: Callable[[], None], *, takes_part: bool = True) -> None:
    """Does something on the ranks that take part; an InferenceError on any of them is raised on all. Collective."""
    failures: list[str | None] = [None] * dist.get_world_size()
    failure = None
    try:
        if takes_part:
            action()
    except InferenceError as error:
        failure = str(error)
    dist.all_gather_object(failures, failure)
    if any(failures):
        raise InferenceError(next(filter(None, failures)))


def num_bytes(bucket: Bucket) -> int:
    return sum(tensor.nbytes for _, tensor in bucket)
