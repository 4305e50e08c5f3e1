"""Whitening: values of zero mean and unit variance over the unmasked tokens of all ranks.

A rank computes its `moments`; their sum over ranks gives mean and variance, the same for any sharding.

Shape suffix: R response tokens of this rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8


def moments(values_R: Tensor, mask_R: Tensor) -> Tensor:
    """[count, sum, sum of squares] of the unmasked values, float64."""
    values_R, mask_R = values_R.double(), mask_R.double()
    return torch.stack([mask_R.sum(), (values_R * mask_R).sum(), (values_R.square() * mask_R).sum()])


def whiten(values_R: Tensor, moments_of_all: Tensor) -> Tensor:
    """(value - mean) / sqrt(variance + 1e-8), with the sample variance; float32 [R].

    With fewer than two unmasked values over all ranks there is no variance, and the result is 0.
    """
    count, total, squares = moments_of_all.tolist()
    if count < 2:
        return torch.zeros_like(values_R, dtype=torch.float32)
    mean = total / count
    variance = max(squares - count * mean**2, 0.0) / (count - 1)
    return ((values_R.double() - mean) / (variance + EPSILON) ** 0.5).float()
