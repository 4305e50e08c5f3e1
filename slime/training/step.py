"""One optimizer step: forward and backward over micro-batches, reduction of gradients, update, learning rate.

The gradient of the step is a plain sum over micro-batches and ranks, because the loss is already divided by sizes of
the global batch (slime.training.losses).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

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
    _scale_balancing_losses(model, batches)
    sums = run(model.chunks, batches, scoring, loss=partial(loss, compare=compare), with_entropy=loss.with_entropy)
    learning_rates = {f"lr-pg_{index}": group["lr"] for index, group in enumerate(model.optimizer.param_groups)}
    updated, grad_norm, _ = model.optimizer.step()
    if not updated:
        raise RuntimeError(f"the optimizer refused the step: gradient norm {grad_norm}")
    model.schedule.step(increment=1)
    return sums, {"grad_norm": float(grad_norm), **learning_rates}


def _scale_balancing_losses(model: Model, batches: list[MicroBatch]) -> None:
    """Load-balancing and z-losses of a mixture of experts as means over the tokens of the step.

    Megatron adds each micro-batch's loss times its number of tokens, to be divided later by that of the global batch;
    nothing is divided here, so the losses' own backward scale does it. It costs one small all-reduce, and only models
    that have such losses.
    """
    config = model.config
    coefficients = (
        config.moe_aux_loss_coeff if isinstance(config.moe_aux_loss_coeff, list) else [config.moe_aux_loss_coeff]
    )
    if not config.num_moe_experts or not (any(coefficients) or config.moe_z_loss_coeff):
        return
    tokens = sum(
        batch.tokens_1T.numel() - (0 if batch.padding_1T is None else int(batch.padding_1T.sum())) for batch in batches
    )
    total = model.parallel.sum_over_data(torch.tensor([float(tokens)], device=model.parallel.device.torch))
    config.moe_grad_scale_func = lambda: model.optimizer.scale_loss(1 / total)
