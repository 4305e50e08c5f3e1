"""The clipped policy gradient of PPO and its variants.

Shape suffix: R response tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algorithms.kl import FURTHEST


def clipped_policy_loss(
    log_ratio_R: Tensor, advantages_R: Tensor, *, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """PPO, arXiv:1707.06347, equation 7: -min(ratio · A, clip(ratio, 1 - eps_low, 1 + eps_high) · A).

    Args:
        log_ratio_R: log of new over old probability; the gradient flows through it.
        eps_high: differs from eps_low in clip-higher (DAPO, arXiv:2503.14476, equation 10).
        dual_clip: bound of the loss where A < 0, in multiples of -A (arXiv:1912.09729, equation 5); greater than 1.

    A ratio beyond e^20 is taken for that, without a gradient, which would not be finite.

    Returns:
        Loss and whether the clip took hold (as 0 or 1), both float32 [R].
    """
    ratio_R = log_ratio_R.clamp(max=FURTHEST).exp()
    free_R = -ratio_R * advantages_R
    clipped_R = -ratio_R.clamp(1.0 - eps_low, 1.0 + eps_high) * advantages_R
    loss_R = torch.maximum(free_R, clipped_R)
    if dual_clip is not None:
        loss_R = torch.where(advantages_R < 0, torch.minimum(loss_R, -dual_clip * advantages_R), loss_R)
    return loss_R, (clipped_R > free_R).float()


def cispo_loss(
    log_probs_R: Tensor, log_ratio_R: Tensor, advantages_R: Tensor, *, eps_low: float, eps_high: float
) -> tuple[Tensor, Tensor]:
    """CISPO, arXiv:2506.13585, equations 4 and 5: -clip(ratio, 1 - eps_low, 1 + eps_high) · A · log-prob.

    The clipped ratio is a weight, without a gradient: unlike in PPO, a token whose ratio is clipped still learns. With
    eps_low >= 1, as in the paper, nothing is clipped from below.

    Returns:
        Loss and whether the ratio was clipped (as 0 or 1), both float32 [R].
    """
    ratio_R = log_ratio_R.detach().exp()
    weight_R = ratio_R.clamp(1.0 - eps_low, 1.0 + eps_high)
    return -weight_R * advantages_R * log_probs_R, (weight_R != ratio_R).float()
