"""What one rank trained on, in a file: every tensor of its micro-batches as the loss got it, as a .npz."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from torch import Tensor

from slime.training.packing import MicroBatch


def write_micro_batches(path: str | Path, batches: Sequence[MicroBatch]) -> None:
    """Arrays are called `3.advantages_R`: of the fourth micro-batch. Whole, or not at all."""
    path = Path(path)
    arrays = {
        f"{index}.{field.name}": _array(value)
        for index, batch in enumerate(batches)
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        np.savez(file, **arrays)
    beside.replace(path)


def _array(tensor: Tensor) -> np.ndarray:
    """NumPy has no bfloat16, and float32 holds all of its values."""
    return (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy()
