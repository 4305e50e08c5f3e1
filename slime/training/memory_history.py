"""--record-memory-history: what allocates memory in a training process, from its start on.

torch records PyTorch's allocator of the GPU (the file opens at pytorch.org/memory_viz), memray the host's memory
(`memray flamegraph FILE`). Written once: after --memory-snapshot-num-steps rollouts, or when the run ends.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from slime.config import Config
from slime.training.parallel import Parallel

ENTRIES = 1_000_000  # of the last allocations and releases


class MemoryHistory:
    """Of one rank; records nothing unless it is asked for. Raises ValueError for what can't be recorded here."""

    def __init__(self, config: Config, parallel: Parallel, noun: str) -> None:
        self.num_rollouts, self.seen = config.memory_snapshot_num_steps, 0
        self.recording = config.record_memory_history
        if not self.recording:
            return
        directory = Path(config.memory_snapshot_dir or Path(config.run_dir or ".") / "memory")
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{noun}-rank{parallel.rank}"
        self.memray: Any = None
        if config.memory_recorder == "memray":
            if importlib.util.find_spec("memray") is None:
                raise ValueError("--memory-recorder memray: the package memray is not installed")
            import memray

            self.memray = memray.Tracker(self.path.with_suffix(".bin"))
            self.memray.__enter__()
        elif not parallel.device.is_cuda:
            raise ValueError("--memory-recorder torch: only memory of GPUs has a history; on a CPU use memray")
        else:
            torch.cuda.memory._record_memory_history(max_entries=ENTRIES)

    def after_rollout(self) -> None:
        self.seen += 1
        if self.seen == self.num_rollouts:
            self.write()

    def write(self) -> None:
        """Ends the recording, if there still is one."""
        if not self.recording:
            return
        self.recording = False
        if self.memray is not None:
            self.memray.__exit__(None, None, None)
        else:
            torch.cuda.memory._dump_snapshot(str(self.path.with_suffix(".pickle")))
            torch.cuda.memory._record_memory_history(enabled=None)
