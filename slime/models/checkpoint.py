"""Checkpoint: the safetensors files of one directory, read in slices.

Invariant: files are mapped, not read: opening one touches its header, `fetch` the pages that hold the slice.
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
READABLE = ("F32", "BF16", "F16", "F64")  # safetensors' names of the dtypes that are plain numbers


class CheckpointError(ModelError):
    """Weights that are not there, or not those of the model; one message lists all that is wrong, with file names."""


class Checkpoint:
    """The weights in `directory`: an index and its files, or files alone. CheckpointError when there are none."""

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self.bytes_read = 0
        self._open = cache(self._open_file)
        self.files: dict[str, str] = self._indexed() if (self.directory / INDEX).exists() else self._scanned()
        """Tensor name -> file name."""

    def _indexed(self) -> dict[str, str]:
        path = self.directory / INDEX
        try:
            files = dict(json.loads(path.read_text())["weight_map"])
        except (OSError, ValueError, KeyError, TypeError) as error:
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
        if tensor.get_dtype() not in READABLE:
            return f"{name} in {file} has dtype {tensor.get_dtype()}, not one of {', '.join(READABLE)}"
        if tuple(tensor.get_shape()) != shape:
            return f"{name} in {file} has shape {tuple(tensor.get_shape())}, the model wants {shape}"
        return None

    def fetch(self, name: str, index: tuple[slice, ...]) -> Tensor:
        """That part of a tensor (CPU, the file's dtype): one slice a leading dimension, none for all of it."""
        tensor = self._open(self.files[name]).get_slice(name)[index or ...]
        self.bytes_read += tensor.nbytes
        return tensor
