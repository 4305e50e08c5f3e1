"""What tests ask of running processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil


def in_dev_shm(processes: Iterable[psutil.Process]) -> set[Path]:
    """What these processes have mapped in /dev/shm."""
    maps = [line for process in processes for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()]
    return {Path(line.split(maxsplit=5)[-1]) for line in maps if "/dev/shm/" in line and not line.endswith("(deleted)")}
