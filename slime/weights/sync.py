"""One weight update, whatever the medium: stop the engines, send every tensor, let them go on.

Invariants
- A version number rises by one at each update, and every engine reports it with each token from then on.
- Nothing is generated between `begin` and `end`, and the caches of the old weights are flushed before: an engine never
  serves a mix, and never reuses keys and values of old weights.
- `push` is collective over the training ranks: all take part in gathering shards; who talks to the engines depends on
the medium.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import torch
import torch.distributed as dist

from slime.inference.control import EngineControl, call_all
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
        self.leads = dist.get_rank() == 0

    def push(self, version: int) -> dict[str, float]:
        """Returns perf/update_weights_time in seconds and perf/update_weights_wire_bytes, the bytes this rank sent."""
        start = time.perf_counter()
        if self.leads:
            call_all(self.engines, "pause", mode="retract")
            call_all(self.engines, "flush_cache")
            call_all(self.engines, "begin_weight_update")
        dist.barrier()
        sent_bytes = self._send(str(version))
        dist.barrier()
        if self.leads:
            call_all(self.engines, "end_weight_update")
            call_all(self.engines, "resume")
        return {"perf/update_weights_time": time.perf_counter() - start, "perf/update_weights_wire_bytes": sent_bytes}

    @abstractmethod
    def _send(self, version: str) -> int:
        """Sends every tensor inside an open update; returns the bytes that left this rank."""

    @abstractmethod
    def close(self) -> None:
        """Releases what outlives the process if it is not released: groups, shared memory."""


def num_bytes(bucket: Bucket) -> int:
    return sum(tensor.nbytes for _, tensor in bucket)
