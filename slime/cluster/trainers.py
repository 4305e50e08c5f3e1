"""The policy's ranks as Ray actors, one a device; and what they have in common with the critic's.

Every rank is called with the same thing at the same time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from slime.cluster.placement import Place, Placement
from slime.cluster.wait import wait
from slime.config import Config
from slime.config.hooks import load_hook
from slime.platform import ports

if TYPE_CHECKING:
    from slime.inference.control import EngineControl
    from slime.weights.sync import WeightSync

Trained = tuple[dict[str, float], list[dict[str, float]]]
MEETING_S = 120.0
HANDOVER_S = 60.0


class Rank:
    """One rank of a model. Torch and Megatron are imported here and in no other process of a run."""

    def __init__(self, config: Config, rank: int, world_size: int, host: str) -> None:
        os.environ.update({name: str(value) for name, value in config.train_env_vars.items()})
        self.config, self.rank, self.world_size, self.host = config, rank, world_size, host
        self.trainer: Any = None
        self.reserved: socket.socket | None = None

    def meeting_point(self) -> tuple[str, int]:
        """Host and port where the other ranks can reach this one, held for it until it closes."""
        self.reserved = ports.reserve(self.host)
        return self.host, ports.number(self.reserved)

    def save(self, rollout_id: int, weight_version: int, in_background: bool) -> None:
        self.trainer.save(rollout_id, weight_version, in_background=in_background)

    def close(self) -> None:
        if self.trainer is not None:
            self.trainer.close()
        if self.reserved is not None:
            self.reserved.close()


class TrainActor(Rank):
    """One rank of the policy."""

    sync: WeightSync | None = None

    def start(self, master_addr: str, master_port: int) -> tuple[int, int]:
        """Builds the model. Returns the last rollout that its weights were trained on, -1 for none, and their
        version."""
        from slime.training.trainer import Trainer

        self.trainer = Trainer(self.config, self.rank, self.world_size, master_addr, master_port)
        return self.trainer.loaded.rollout_id, self.trainer.loaded.weight_version

    def connect(self, engines: list[EngineControl]) -> None:
        """Prepares the way of the weights to these engines, in place of those before."""
        if self.sync is not None:
            self.sync, before = None, self.sync
            before.close()
        self.sync = self._way_to(engines)

    def push(self, version: int) -> dict[str, float]:
        """The weights to the engines that were connected. Raises InferenceError on every rank when one of them
        fails."""
        return self._push(self.sync, version)

    def bring(self, version: int, engines: list[EngineControl]) -> dict[str, float]:
        """The weights to some engines alone, by a way that is made for it; the others may generate meanwhile. Raises as
        `push`."""
        way = self._way_to(engines)
        try:
            return self._push(way, version)
        finally:
            way.close()

    def _way_to(self, engines: list[EngineControl]) -> WeightSync:
        from slime.weights.broadcast import BroadcastSync
        from slime.weights.disk import DiskSync
        from slime.weights.handles import HandleSync

        config = self.config
        if config.colocate:
            return HandleSync(self.trainer, engines, buffer_bytes=config.update_weight_buffer_size)
        if config.update_weight_transport == "disk":
            written = load_hook("--custom-update-weight-post-write-path", config.custom_update_weight_post_write_path)
            return DiskSync(
                self.trainer,
                engines,
                buffer_bytes=config.update_weight_buffer_size,
                parent=Path(config.update_weight_disk_dir or Path(config.run_dir, "weights")),
                keeps_files=config.update_weight_disk_keep_files,
                written=None if written is None else partial(written, config),
            )
        return BroadcastSync(
            self.trainer,
            engines,
            buffer_bytes=config.update_weight_buffer_size,
            address=self.host,
            backend=self.trainer.parallel.device.backend,
            timeout=timedelta(minutes=config.distributed_timeout_minutes),
        )

    def _push(self, way: WeightSync, version: int) -> dict[str, float]:
        metrics = way.push(version)
        if self.config.check_weight_update_equal:
            from slime.weights.equality import check_equal

            check_equal(self.trainer, way.engines, Path(self.config.run_dir))
        return metrics

    def train(self, rollout_id: int, batches: list[ray.ObjectRef]) -> Trained:
        """`batches` holds one reference a data-parallel rank. What is returned is the same on every rank."""
        result = self.trainer.train(rollout_id, ray.get(batches[self.trainer.dp_rank], timeout=HANDOVER_S))
        return result.rollout, result.steps  # not the TrainResult: to read it the driver would import Megatron

    def prepare(self, rollout_id: int, batches: list[ray.ObjectRef], values: list[ray.ObjectRef]) -> ray.ObjectRef:
        """The first half of `train`, with the values of the critic, one reference a rank: returns, in the object
        store."""
        batch = ray.get(batches[self.trainer.dp_rank], timeout=HANDOVER_S)
        return ray.put(self.trainer.prepare(rollout_id, batch, ray.get(values[self.rank], timeout=HANDOVER_S)))

    def update(self, optimises: bool) -> Trained:
        """The second half; the policy stays as it is if not to be optimised."""
        result = self.trainer.update(optimises=optimises)
        return result.rollout, result.steps

    def save_hf(self, directory: str) -> None:
        self.trainer.save_hf(directory)

    def close(self) -> None:
        if self.sync is not None:
            self.sync.close()
        super().close()


class Ranks:
    """All ranks of a model, on `places`. What a method returns is one reference a rank."""

    kind: type[Rank]
    name: str

    def __init__(self, config: Config, placement: Placement, places: Sequence[Place]) -> None:
        self.ranks = [
            ray.remote(self.kind)
            .options(name=f"{self.name}-{rank}", **placement.options([place]))
            .remote(config, rank, len(places), place.host)
            for rank, place in enumerate(places)
        ]

    def __len__(self) -> int:
        return len(self.ranks)

    def start(self) -> list[ray.ObjectRef]:
        """Builds the model on every rank; see `start` of the kind of rank for what comes back."""
        if not self.ranks:
            return []
        host, port = wait(self.ranks[0].meeting_point.remote(), f"the first {self.name} to start", MEETING_S)
        return [rank.start.remote(host, port) for rank in self.ranks]

    def save(self, rollout_id: int, weight_version: int, *, in_background: bool) -> list[ray.ObjectRef]:
        return [rank.save.remote(rollout_id, weight_version, in_background) for rank in self.ranks]

    def close(self) -> list[ray.ObjectRef]:
        return [rank.close.remote() for rank in self.ranks]


class Trainers(Ranks):
    """All ranks of the policy."""

    kind, name = TrainActor, "trainer"

    def connect(self, engines: list[EngineControl]) -> list[ray.ObjectRef]:
        return [rank.connect.remote(engines) for rank in self.ranks]

    def push(self, version: int) -> list[ray.ObjectRef]:
        return [rank.push.remote(version) for rank in self.ranks]

    def bring(self, version: int, engines: list[EngineControl]) -> list[ray.ObjectRef]:
        return [rank.bring.remote(version, engines) for rank in self.ranks]

    def train(self, rollout_id: int, batches: list[ray.ObjectRef]) -> list[ray.ObjectRef]:
        return [rank.train.remote(rollout_id, batches) for rank in self.ranks]

    def prepare(
        self, rollout_id: int, batches: list[ray.ObjectRef], values: list[ray.ObjectRef]
    ) -> list[ray.ObjectRef]:
        return [rank.prepare.remote(rollout_id, batches, values) for rank in self.ranks]

    def update(self, *, optimises: bool) -> list[ray.ObjectRef]:
        return [rank.update.remote(optimises) for rank in self.ranks]

    def save_hf(self, directory: str) -> list[ray.ObjectRef]:
        return [rank.save_hf.remote(directory) for rank in self.ranks]
