"""Checkpoint: the safetensors files of one directory, read in slices.

Invariant: files are mapped, not read: opening one touches its header, `fetch` the pages that hold the slice.

Weights in fp8 with a scale for each block of rows and columns (DeepSeek-V3's format: `x.weight` in float8_e4m3,
`x.weight_scale_inv` in float32, arXiv:2412.19437, section 3.3) come out as float32, weight times scale.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from slime.models.family import ModelError
from slime.models.mapping import Shape

INDEX = "model.safetensors.index.json"
READABLE = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""safetensors' names of the dtypes that are plain numbers, and torch's."""
FP8 = "F8_E4M3"


class CheckpointError(ModelError):
    """Weights that are not there, or not those of the model; one message lists all that is wrong, with file names."""


class Checkpoint:
    """The weights in `directory`: an index and its files, or files alone. CheckpointError when there are none.

    `fp8_block` (rows, columns) is what shares a scale in fp8 weights; without it these can't be read.
    """

    def __init__(self, directory: str | Path, fp8_block: tuple[int, int] | None = None):
        self.directory = Path(directory)
        self.fp8_block = fp8_block
        self.bytes_read = 0
        self._open = cache(self._open_file)
        self.files: dict[str, str] = self._indexed() if (self.directory / INDEX).exists() else self._scanned()
        """Tensor name -> file name."""

    def _indexed(self) -> dict[str, str]:
        path = self.directory / INDEX
        try:
            files = dict(json.loads(path.read_text())["weight_map"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path} is not an index of safetensors files: {error!r}") from error
        if absent := sorted({file for file in files.values() if not (self.directory / file).is_file()}):
            raise CheckpointError(
                f"{path} names files that are not there: {', '.join(absent)}. Is the download complete?"
            )
        return files

    def _scanned(self) -> dict[str, str]:
        files: dict[str, str] = {}
        paths = sorted(self.directory.glob("*.safetensors"))
        if not paths:
            there = sorted(path.name for path in self.directory.iterdir()) if self.directory.is_dir() else None
            found = "the directory does not exist" if there is None else f"it holds {', '.join(there) or 'nothing'}"
            raise CheckpointError(f"{self.directory} has no weights (no *.safetensors): {found}")
        for path in paths:
            for name in self._open(path.name).keys():
                if name in files:
                    raise CheckpointError(
                        f"{self.directory}: {name} is in both {files[name]} and {path.name}, and there is no {INDEX}"
                    )
                files[name] = path.name
        return files

    def _open_file(self, file: str) -> Any:
        path = self.directory / file
        try:
            return safetensors.safe_open(path, framework="pt")
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error

    def problem(self, name: str, shape: Shape) -> str | None:
        """What is wrong with tensor `name`, if it should have `shape`; None when it can be fetched."""
        if name not in self.files:
            return f"{name} is missing"
        file = self.files[name]
        try:
            tensor = self._open(file).get_slice(name)
        except CheckpointError as error:
            return str(error)
        except safetensors.SafetensorError:
            return f"{name} is not in {file}, though {INDEX} says so"
        if tensor.get_dtype() == FP8 and self.fp8_block:
            if scale_of(name) not in self.files:
                return f"{name} in {file} is in fp8, but {scale_of(name)} is missing"
        elif tensor.get_dtype() not in READABLE:
            return f"{name} in {file} has dtype {tensor.get_dtype()}, not one of {', '.join(READABLE)}"
        if tuple(tensor.get_shape()) != shape:
            return f"{name} in {file} has shape {tuple(tensor.get_shape())}, the model wants {shape}"
        return None

    def dtype(self, name: str) -> str:
        """As torch calls it, where it is one of plain numbers."""
        stored = self._open(self.files[name]).get_slice(name).get_dtype()
        return READABLE.get(stored, stored)

    def fetch(self, name: str, index: tuple[slice, ...]) -> Tensor:
        """That part of a tensor (CPU, the file's dtype): one slice a leading dimension, none for all of it."""
        whole = self._open(self.files[name]).get_slice(name)
        tensor = whole[index or ...]
        self.bytes_read += tensor.nbytes
        return self._scaled(name, tensor, whole.get_shape(), index) if whole.get_dtype() == FP8 else tensor

    def _scaled(self, name: str, part: Tensor, shape: list[int], index: tuple[slice, ...]) -> Tensor:
        """Part `index` of an fp8 matrix, times the scales of the blocks that it touches."""
        blocks, inside = [], []
        for dim, block in enumerate(self.fp8_block):
            start, stop, _ = (index[dim] if dim < len(index) else slice(None)).indices(shape[dim])
            blocks.append(slice(start // block, -(-stop // block)))
            inside.append(slice(start % block, start % block + stop - start))
        scales = self.fetch(scale_of(name), tuple(blocks)).float()
        for dim, block in enumerate(self.fp8_block):
            scales = scales.repeat_interleave(block, dim)
        return part.float() * scales[tuple(inside)]


def scale_of(name: str) -> str:
    return f"{name}_scale_inv"
