"""What is decided by a whole sample instead of token by token.

A mean over a sample's unmasked tokens comes in as one value for each of its tokens: under context parallelism the
tokens are on several ranks, and how they are added up is not the business of a formula.

Shape suffix: R response tokens.
"""

from __future__ import annotations

from torch import Tensor


def sequence_log_ratio(log_ratio_R: Tensor, mean_log_ratio_R: Tensor) -> Tensor:
    """GSPO, arXiv:2507.18071, equations 7 and 14: the sample's mean log-ratio as a value, the token's as a gradient.

    Equation 14 is GSPO-token. Where all tokens of a sample share one advantage, its gradient is that of GSPO itself.
    """
    return mean_log_ratio_R.detach() + log_ratio_R - log_ratio_R.detach()


def off_policy_mask(mean_log_ratio_R: Tensor, mean_advantages_R: Tensor, delta: float) -> Tensor:
    """OPSM, arXiv:2512.02556, equation 9: 0 for samples that went badly and have become unlikely, else 1; float32 [R].

    A sample is left out when its mean advantage is negative and the mean of log old - log new exceeds `delta`. With
    advantages of mixed signs in a sample their mean counts, so that a sample is left out whole or not at all.
    """
    return 1.0 - ((mean_advantages_R < 0) & (-mean_log_ratio_R > delta)).float()
