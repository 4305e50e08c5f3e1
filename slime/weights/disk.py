"""Weights by files, for engines that share no network with the trainers but a file system: --update-weight-transport
disk.

Each update is a Hugging Face checkpoint in a directory of its own, written beside its place and renamed: an engine
loads a whole one or none. It takes the longest of all ways, and needs nothing of the engines but that they can read.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch.distributed as dist

from slime.inference.control import EngineControl, call_all
from slime.training.trainer import Trainer
from slime.weights.sync import WeightSync


class DiskSync(WeightSync):
    """`parent` holds the directories, and every engine's node sees it. `written` is called on rank 0 with each of them
    and its version, before the engines read it."""

    def __init__(
        self,
        trainer: Trainer,
        engines: list[EngineControl],
        *,
        buffer_bytes: int,
        parent: Path,
        keeps_files: bool = False,
        written: Callable[[Path, str], None] | None = None,
    ) -> None:
        super().__init__(trainer, engines, buffer_bytes=buffer_bytes)
        self.parent = parent.absolute()
        self.keeps_files = keeps_files
        self.written = written

    def _send(self, version: str) -> int:
        directory = self.parent / f"version-{version}"
        self.trainer.save_hf(str(directory))
        if dist.get_rank() != 0:
            return 0
        size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
        if self.written is not None:
            self.written(directory, version)
        load = partial(call_all, self.engines, "update_weights_from_disk")
        self._attempt(partial(load, model_path=str(directory), weight_version=version))
        if not self.keeps_files:
            shutil.rmtree(directory)
        return size

    def close(self) -> None:
        """Nothing outlives the process but files that are to be kept."""
