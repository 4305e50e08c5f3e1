"""Losses that balance the load of experts: Megatron's auxiliary and z-losses, as means over the tokens of a step.

Megatron adds the loss of each micro-batch times its number of tokens, to be divided by the tokens of the global batch.
Here nothing is divided afterwards, so the backward scale of these losses does it.
"""

from __future__ import annotations

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime.training.build import Model
from slime.training.packing import MicroBatch


def has_balancing_losses(config: TransformerConfig) -> bool:
    coefficients = config.moe_aux_loss_coeff
    coefficients = coefficients if isinstance(coefficients, list) else [coefficients]
    return bool(config.num_moe_experts) and any([*coefficients, config.moe_z_loss_coeff])


def padding_mask(config: TransformerConfig, batch: MicroBatch) -> Tensor | None:
    """Which tokens do not count. None for an empty micro-batch: Megatron would divide by the number of the others."""
    return batch.padding_1T if has_balancing_losses(config) and batch.num_samples else None


def scale_balancing_losses(model: Model, batches: list[MicroBatch]) -> None:
    """Divides by the tokens of the step over all ranks. One small all-reduce, of models that have such losses alone."""
    if not has_balancing_losses(model.config):
        return
    tokens = sum(b.tokens_1T.numel() - (0 if b.padding_1T is None else int(b.padding_1T.sum())) for b in batches)
    total = model.parallel.sum_over_data(torch.tensor([float(tokens)], device=model.parallel.device.torch))
    model.config.moe_grad_scale_func = lambda: model.optimizer.scale_loss(1 / total)
