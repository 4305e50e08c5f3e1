"""One optimizer step: forward and backward over micro-batches, reduction of gradients, update, learning rate.

The gradient of the step is a plain sum over micro-batches and ranks, because the loss is already divided by sizes of
the global batch (slime.training.losses).
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from slime.training.balancing import scale_balancing_losses
from slime.training.build import Model
from slime.training.forward import Scoring, run
from slime.training.losses import Loss
from slime.training.packing import MicroBatch


def optimizer_step(
    model: Model, batches: list[MicroBatch], loss: Loss, scoring: Scoring, *, compare: bool
) -> tuple[list[dict[str, Tensor]], dict[str, float]]:
    """Returns the loss's sums of each micro-batch ([] on all but the last pipeline stage), and the step's own figures.

    Raises:
        RuntimeError: a gradient is not finite; nothing was updated.
    """
    for chunk in model.chunks:
        chunk.zero_grad_buffer()
    model.optimizer.zero_grad()
    scale_balancing_losses(model, batches)
    sums = run(model.chunks, batches, scoring, loss=partial(loss, compare=compare), extras=loss.extras)
    learning_rates = {f"lr-pg_{index}": group["lr"] for index, group in enumerate(model.optimizer.param_groups)}
    updated, grad_norm, _ = model.optimizer.step()
    if not updated:
        raise RuntimeError(f"the optimizer refused the step: gradient norm {grad_norm}")
    model.schedule.step(increment=1)
    return sums, {"grad_norm": float(grad_norm), **learning_rates}
