"""Importance weights that correct for sampling from another policy than the one that is trained.

The engine that samples and the trainer differ by rounding, by kernels, and under asynchrony by weights. With
d = log trainer - log engine of a sampled token, exp(d) is its importance ratio.

Shape suffix: R response tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def truncated_weights(log_ratio_R: Tensor, low: float, high: float) -> Tensor:
    """Truncated importance sampling (Ionides, J. Comput. Graph. Stat. 17(2), 2008): the ratio, cut to [low, high].

    float32 [R], without a gradient.
    """
    return log_ratio_R.detach().float().exp().clamp(low, high)


def masked_weights(log_ratio_R: Tensor, low: float, high: float) -> Tensor:
    """IcePop, arXiv:2510.18855: the ratio where it is within [low, high], else 0, so that what is too far off policy
    teaches nothing; float32 [R], without a gradient."""
    ratio_R = log_ratio_R.detach().float().exp()
    return torch.where((ratio_R >= low) & (ratio_R <= high), ratio_R, torch.zeros_like(ratio_R))
