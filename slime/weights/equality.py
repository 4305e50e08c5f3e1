"""--check-weight-update-equal: proof that engines serve the weights that the trainers have.

The weights take a second, independent way: trainers export a checkpoint, engines load it from disk. If checksums of all
tensors are the same before and after, what had come by the fast way was equal. That holds for any parallel layout on
either side, fused or sharded, since only the engine's own tensors are compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from slime.inference.control import EngineControl, call_all
from slime.training.trainer import Trainer
from slime.weights.sync import together

SHOWN = 10


class WeightsDiffer(RuntimeError):
    """An engine serves other weights than the trainers have. The message names the tensors."""


def check_equal(trainer: Trainer, engines: Sequence[EngineControl], scratch: Path) -> None:
    """Collective over the training ranks. `scratch`, where a checkpoint is written and removed, must be visible to all
    nodes.

    Raises WeightsDiffer on rank 0, InferenceError on all when an engine has no answer.
    """
    directory = scratch / "weights-to-compare"
    if dist.get_rank() == 0 and directory.exists():
        shutil.rmtree(directory)  # of a check that was interrupted
    trainer.save_hf(directory)
    dist.barrier()
    together(lambda: _check(engines, directory), takes_part=dist.get_rank() == 0)


def _check(engines: Sequence[EngineControl], directory: Path) -> None:
    arrived = call_all(engines, "weights_checksum")
    call_all(engines, "update_weights_from_disk", model_path=str(directory))
    expected = call_all(engines, "weights_checksum")
    shutil.rmtree(directory)
    _compare(engines, arrived, expected)


def _compare(engines: Sequence[EngineControl], arrived: list[list[dict]], expected: list[list[dict]]) -> None:
    lines = []
    for engine, got, wanted in zip(engines, arrived, expected, strict=True):
        for rank, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
            sums, wanted_sums = mine["checksums"], theirs["checksums"]
            names = [name for name in wanted_sums if sums.get(name) != wanted_sums[name]]
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                lines.append(
                    f"{engine.name}, rank {rank}: {len(names)} of {len(wanted_sums)} tensors:"
                    f" {', '.join(names[:SHOWN])}{more}"
                )
    if lines:
        raise WeightsDiffer("the weight update did not bring the trainers' weights to\n  " + "\n  ".join(lines))
