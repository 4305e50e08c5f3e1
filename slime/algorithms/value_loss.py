"""The clipped loss of a value function.

Shape suffix: R response tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_value_loss(values_R: Tensor, old_values_R: Tensor, returns_R: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's (github.com/openai/baselines, ppo2): max((V - G)², (clip(V, V_old - clip, V_old + clip) - G)²) / 2.

    Args:
        values_R: of the current value function; the gradient flows through them.
        old_values_R: from before the rollout's training.
        returns_R: what the values are fitted to.

    Returns:
        Loss and whether the clip took hold (as 0 or 1), both float32 [R].
    """
    near_R = torch.clamp(values_R, old_values_R - clip, old_values_R + clip)
    free_R, clipped_R = (values_R - returns_R).square(), (near_R - returns_R).square()
    return torch.maximum(free_R, clipped_R) / 2, (clipped_R > free_R).float()
