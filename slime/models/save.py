"""Saving: a complete checkpoint directory in HF format, or none at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from slime.models.checkpoint import INDEX, Checkpoint, CheckpointError
from slime.models.export import Bucket, export_hf
from slime.models.family import Family
from slime.models.shard import Shard

FILE_BYTES = 5_000_000_000
BUCKET_BYTES = 1_000_000_000
COMPANIONS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")
"""Suffixes of what a checkpoint has beside its weights: configurations, tokenizer, chat template, custom code."""


def save_hf(shard: Shard, directory: str | Path, source: str | Path, file_bytes: int = FILE_BYTES) -> None:
    """Writes the model to `directory` as HF safetensors, with config.json and the tokenizer's files from `source`.

    Collective over all ranks: rank 0 writes, the others take part in the gathering, and all return when the directory
    is in place. Weights have the dtype that config.json names; tensors of the source that the family passes on (layers
    that are not trained) come with them. Above `file_bytes` they are spread over files with an index. The directory is
    written beside its place and renamed; an earlier checkpoint there is replaced, and lost only once the new one is
    whole.

    Raises CheckpointError on every rank when rank 0 could not write, or when `directory` holds something that is no
    checkpoint or is `source` itself.
    """
    writer = _Writer(Path(directory), Path(source), shard.family, file_bytes) if dist.get_rank() == 0 else None
    if writer:
        writer.attempt(writer.begin)
    _fail_together(writer)
    for bucket in export_hf(shard, BUCKET_BYTES, across_pp=True):
        if writer:
            writer.attempt(writer.add, bucket)
    if writer:
        writer.attempt(writer.finish)
    _fail_together(writer)


class _Writer:
    """Rank 0's side. After a failure it does nothing more, so that rank 0 stays in step with the other ranks."""

    def __init__(self, directory: Path, source: Path, family: Family, file_bytes: int):
        self.directory = directory.absolute()
        self.source = source
        self.family = family
        self.file_bytes = file_bytes
        self.partial = self.directory.with_name(f".{self.directory.name}.partial")
        self.replaced = self.directory.with_name(f".{self.directory.name}.replaced")
        self.pending: dict[str, Tensor] = {}  # of the file to come
        self.pending_bytes = 0
        self.written: list[list[str]] = []  # names of the tensors, a list a file
        self.total_size = 0
        self.copies: dict[str, list[str]] = {}  # of a tensor of the model: names of those in the source that repeat it
        self.failure: Exception | None = None

    def attempt(self, step: Callable[..., None], *arguments: Bucket) -> None:
        if self.failure is None:
            try:
                step(*arguments)
            except Exception as error:  # whatever it is, the other ranks have to hear of it: they would wait for rank 0
                self.failure = error
                shutil.rmtree(self.partial, ignore_errors=True)

    def begin(self) -> None:
        if self.directory.resolve() == self.source.resolve():
            raise CheckpointError("that is where the model came from")
        if not (self.source / "config.json").is_file():
            raise CheckpointError(f"{self.source}, which should lend its config.json, has none")
        if self.directory.exists() and not (self.directory / "config.json").exists() and any(self.directory.iterdir()):
            raise CheckpointError("it holds files but no config.json, so it is no earlier checkpoint to be replaced")
        for name in self._passed_on():
            if (whole := self.family.copy_of(name)) is not None:
                self.copies.setdefault(whole, []).append(name)
        shutil.rmtree(self.partial, ignore_errors=True)  # of a save that was killed
        self.partial.mkdir(parents=True)

    def add(self, bucket: Bucket) -> None:
        for name, tensor in bucket:
            dtype = None if self.family.keeps_dtype(name) else self.family.dtype
            tensor = tensor.to("cpu", dtype or tensor.dtype)
            self._append(name, tensor)
            for copy in self.copies.get(name, ()):
                self._append(copy, tensor.clone())

    def _append(self, name: str, tensor: Tensor) -> None:
        if self.pending and self.pending_bytes + tensor.nbytes > self.file_bytes:
            self._write()
        self.pending[name] = tensor
        self.pending_bytes += tensor.nbytes

    def _write(self) -> None:
        file = self.partial / f"{len(self.written)}"
        file.touch()  # with the permissions that other files get: safetensors writes into a private one beside it
        mode = file.stat().st_mode
        save_file(self.pending, file, metadata={"format": "pt"})
        file.chmod(mode)
        self.written.append(list(self.pending))
        self.total_size += self.pending_bytes
        self.pending, self.pending_bytes = {}, 0

    def _pass_on(self) -> None:
        for name, checkpoint in self._passed_on().items():
            if self.family.copy_of(name) is None:
                self.add([(name, checkpoint.fetch(name, ()))])

    def _passed_on(self) -> dict[str, Checkpoint]:
        """What training leaves alone, and where it is; nothing if the source has no weights at all."""
        if not any(self.source.glob("*.safetensors")):
            return {}
        checkpoint, family = Checkpoint(self.source, self.family.fp8_block), self.family
        names = (name for name in checkpoint.files if family.passes_on(name) and not family.ignores(name))
        return dict.fromkeys(names, checkpoint)

    def finish(self) -> None:
        self._pass_on()
        self._write()
        count = len(self.written)
        weight_map: dict[str, str] = {}
        for i, names in enumerate(self.written):
            file = "model.safetensors" if count == 1 else f"model-{i + 1:05}-of-{count:05}.safetensors"
            (self.partial / f"{i}").rename(self.partial / file)
            weight_map |= dict.fromkeys(names, file)
        if count > 1:
            index = {"metadata": {"total_size": self.total_size}, "weight_map": dict(sorted(weight_map.items()))}
            (self.partial / INDEX).write_text(json.dumps(index, indent=2))
        for path in self.source.iterdir():
            if path.is_file() and path.suffix in COMPANIONS and path.name != INDEX:
                shutil.copyfile(path, self.partial / path.name)
        if self.family.fp8_block:  # no longer: the weights were dequantised when they were read
            config = {key: value for key, value in self.family.config.items() if key != "quantization_config"}
            (self.partial / "config.json").write_text(json.dumps(config, indent=2))
        for path in self.partial.iterdir():
            to_disk(path)
        if self.directory.exists():
            shutil.rmtree(self.replaced, ignore_errors=True)
            self.directory.rename(self.replaced)
        self.partial.rename(self.directory)
        shutil.rmtree(self.replaced, ignore_errors=True)


def to_disk(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk: after a power cut a renamed directory must not
    hold empty files."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _fail_together(writer: _Writer | None) -> None:
    """Raises rank 0's failure, if any, on every rank."""
    message = [None]
    if writer and writer.failure:
        message = [f"the model can't be saved to {writer.directory}: {writer.failure}"]
    dist.broadcast_object_list(message, src=0)
    if message[0]:
        raise CheckpointError(message[0]) from (writer.failure if writer else None)
