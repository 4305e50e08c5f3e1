"""How far the trainer's log-probs of sampled tokens are from those of the engine that sampled them.

Under the same weights they differ by rounding alone; more means that the two run different weights or different models.

Shape suffix: R response tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mismatch(train_log_probs_R: Tensor, rollout_log_probs_R: Tensor, mask_R: Tensor) -> tuple[Tensor, Tensor]:
    """|difference| and KL(engine || trainer) of each token, 0 where masked; both float32 [R].

    The KL is Schulman's k3 (see kl.py), whose samples come from the engine: exp(d) - 1 - d with d = trainer - engine.
    """
    zero = torch.zeros((), device=mask_R.device)
    difference_R = torch.where(mask_R > 0, train_log_probs_R.float() - rollout_log_probs_R.float(), zero)
    return difference_R.abs(), difference_R.exp() - 1 - difference_R
