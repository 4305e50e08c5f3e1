"""Loading: HF safetensors straight into this rank's parameters."""

from __future__ import annotations

from pathlib import Path

from slime.models.checkpoint import Checkpoint, CheckpointError
from slime.models.shard import Shard

SHOWN = 50  # lines of an error; a wrong checkpoint can have tens of thousands


def load_hf(shard: Shard, directory: str | Path) -> int:
    """Fills the shard's parameters from the checkpoint in `directory` and returns the bytes that were read for it.

    A rank reads only the slices it holds; values are cast to each parameter's dtype. Call it before an optimizer copies
    the parameters (or have it reload them after). Not collective.

    Raises CheckpointError, before any parameter changes, when there are no weights, or listing every tensor that is
    missing, has another shape or an unreadable dtype, or that the model has no place for.
    """
    family = shard.family
    checkpoint = Checkpoint(directory, family.fp8_block)
    wanted = {name for mapping in family.tensors.values() for name in mapping.names}
    lacking = {name for name in wanted - checkpoint.files.keys() if family.may_lack(name)}
    problems = {f"{name} is missing" for name in wanted - checkpoint.files.keys() - lacking}
    problems |= {
        f"{name} in {file} has no place in the model"
        for name, file in checkpoint.files.items()
        if not (name in wanted or family.ignores(name) or family.passes_on(name) or family.drops_zeros(name))
    }
    problems |= {
        f"{name} in {file} is not zero, and the model has none"
        for name, file in checkpoint.files.items()
        if name not in wanted and family.drops_zeros(name) and checkpoint.fetch(name, ()).any()
    }
    entries = [entry for entry in shard.entries if not lacking.issuperset(entry.mine.names)]
    for entry in entries:
        shapes = entry.mine.shapes(tuple(entry.parameter.shape), entry.cut.size)
        problems |= {
            p for name, shape in zip(entry.mine.names, shapes, strict=True) if (p := checkpoint.problem(name, shape))
        }
    if problems:
        lines = sorted(problems)
        more = [f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        raise CheckpointError(
            f"the weights in {directory} are not those of its config.json (model_type {family.model_type!r}):\n  "
            + "\n  ".join(lines[:SHOWN] + more)
        )
    for entry in entries:
        local = tuple(entry.parameter.shape)
        entry.tensor.copy_(entry.mine.take(checkpoint.fetch, local, entry.cut.rank, entry.cut.size))
    return checkpoint.bytes_read
