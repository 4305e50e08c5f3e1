"""Estimators of KL(policy || base) from the log-probs of tokens that the policy sampled.

From John Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html). With d = log policy - log base:
k1 = d is unbiased, of high variance; k2 = d²/2 biased, of low variance; k3 = exp(-d) - 1 + d unbiased, never negative.

Shape suffix: R response tokens.
"""

from __future__ import annotations

from torch import Tensor

LARGEST = 10.0
FURTHEST = 20.0  # log-ratio; its exp is far beyond LARGEST, and far from infinity, whose gradient would be NaN


def kl_estimate(log_probs_R: Tensor, base_log_probs_R: Tensor, kind: str, log_ratio_R: Tensor | None = None) -> Tensor:
    """KL of each token, float32 [R].

    Args:
        kind: k1, k2, k3 or low_var_kl; the last is k3 cut at 10, so that one odd token can't rule the batch.
        log_ratio_R: log of the current policy over the one that sampled. Where given, the estimate is weighted by the
            ratio, which makes its expectation, and with it the gradient, unbiased off policy (arXiv:2512.02556,
            equation 7).

    Raises:
        ValueError: unknown kind.
    """
    difference_R = log_probs_R.float() - base_log_probs_R.float()
    match kind:
        case "k1":
            kl_R = difference_R
        case "k2":
            kl_R = difference_R.square() / 2
        case "k3":
            kl_R = (-difference_R).clamp(max=FURTHEST).exp() - 1 + difference_R
        case "low_var_kl":
            near_R = difference_R.clamp(min=-FURTHEST)
            kl_R = ((-near_R).exp() - 1 + near_R).clamp(max=LARGEST)
        case _:
            raise ValueError(f"unknown KL estimator {kind!r}: k1, k2, k3 or low_var_kl")
    return kl_R if log_ratio_R is None else log_ratio_R.clamp(max=FURTHEST).exp() * kl_R
