"""What tests of weights run on training ranks (tests.distributed)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from tests.training.ranks import trainer

if TYPE_CHECKING:
    from slime.inference.control import EngineControl


def make_sync(medium: str, made, engines: list[EngineControl], buffer_bytes: int):
    from slime.weights.broadcast import BroadcastSync
    from slime.weights.handles import HandleSync

    common = {"buffer_bytes": buffer_bytes}
    if medium == "handles":
        return HandleSync(made, engines, **common)
    return BroadcastSync(made, engines, **common, address="127.0.0.1", backend="gloo", timeout=timedelta(seconds=60))


def scale_weights(made, factor: float) -> None:
    """The same change whatever the sharding."""
    for chunk in made.model.chunks:
        for parameter in chunk.parameters():
            parameter.data.mul_(factor)


def push_and_compare(
    directory: str,
    options: list[str],
    medium: str,
    engines: list[EngineControl],
    buffer_bytes: int,
    scratch: str,
) -> list[dict[str, float]]:
    """Two updates with other weights each, both compared."""
    from slime.weights.equality import check_equal

    with trainer(directory, *options) as made:
        sync = make_sync(medium, made, engines, buffer_bytes)
        try:
            metrics = []
            for version in (5, 6):
                scale_weights(made, 1.01)
                metrics.append(sync.push(version))
                check_equal(made, engines, Path(scratch))
            return metrics
        finally:
            sync.close()


def push_to_a_dead_one_and_again(
    directory: str, medium: str, engine: EngineControl, dead: EngineControl, scratch: str
) -> str:
    """What an update says that an engine is dead for; the other one gets its weights by the next."""
    from slime.inference.errors import InferenceError
    from slime.weights.equality import check_equal

    with trainer(directory) as made:
        said = ""
        try:
            make_sync(medium, made, [engine, dead], 1 << 20).push(7)
        except InferenceError as error:
            said = str(error)
        sync = make_sync(medium, made, [engine], 1 << 20)
        try:
            scale_weights(made, 1.01)
            sync.push(8)
            check_equal(made, [engine], Path(scratch))
        finally:
            sync.close()
    return said


def compare_after_change(directory: str, engines: list[EngineControl], scratch: str) -> str:
    """What the comparison says when the trainer went on after the update."""
    from slime.weights.equality import WeightsDiffer, check_equal

    with trainer(directory) as made:
        sync = make_sync("handles", made, engines, 1 << 20)
        sync.push(1)
        parameter = dict(made.model.chunks[0].named_parameters())
        name = next(name for name in parameter if "final_layernorm" in name)
        parameter[name].data.add_(1e-3)
        try:
            check_equal(made, engines, Path(scratch))
        except WeightsDiffer as error:
            return str(error)
        finally:
            sync.close()
    assert dist.get_rank() == 0
    return ""
