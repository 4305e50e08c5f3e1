"""Log-probabilities and entropy from logits whose vocabulary may be divided among tensor-parallel ranks.

Softmax in float32 whatever the logits are. Two small collectives for each call, none on a single rank.

Shape suffixes: R rows, one a token to be scored · V this rank's part of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def log_probs_and_entropy(
    logits_RV: Tensor,
    targets_R: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    vocab_start: int = 0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits)[target] of each row and, where asked for, the entropy of the row; differentiable float32 [R].

    Args:
        targets_R: ids of the whole vocabulary.
        group: the ranks that hold the other parts of the vocabulary; None on a single rank.
        vocab_start: id of this rank's first logit.
    """
    log_probs_R, entropy_R = _LogProbs.apply(logits_RV, targets_R - vocab_start, group, with_entropy)
    return log_probs_R, entropy_R if with_entropy else None


class _LogProbs(torch.autograd.Function):
    """With l = logits - max, s = sum exp l: log p = l - log s, and H = log s - sum(l · exp l) / s = -sum p log p."""

    @staticmethod
    def forward(
        ctx: Any, logits_RV: Tensor, index_R: Tensor, group: dist.ProcessGroup | None, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        largest_R1 = logits_RV.amax(dim=-1, keepdim=True).float()
        if group is not None:
            dist.all_reduce(largest_R1, dist.ReduceOp.MAX, group=group)
        shifted_RV = logits_RV - largest_R1  # float32, as largest_R1 is
        exp_RV = shifted_RV.exp()
        here_R = (index_R >= 0) & (index_R < logits_RV.shape[-1])
        index_R1 = torch.where(here_R, index_R, 0).unsqueeze(-1)
        sums = [exp_RV.sum(dim=-1), shifted_RV.gather(-1, index_R1).squeeze(-1) * here_R]
        if with_entropy:
            sums.append(torch.einsum("rv,rv->r", shifted_RV, exp_RV))  # without a third copy, of the products
        sums_R = torch.stack(sums)
        if group is not None:
            dist.all_reduce(sums_R, group=group)
        log_sum_R = sums_R[0].log()
        entropy_R = log_sum_R - sums_R[2] / sums_R[0] if with_entropy else torch.empty(0, device=logits_RV.device)
        if not with_entropy:
            ctx.mark_non_differentiable(entropy_R)
        log_softmax_RV = shifted_RV.sub_(log_sum_R.unsqueeze(-1))
        ctx.save_for_backward(log_softmax_RV, index_R1, here_R, entropy_R)
        ctx.set_materialize_grads(False)
        ctx.dtype = logits_RV.dtype
        return sums_R[1] - log_sum_R, entropy_R

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs_R: Tensor | None, grad_entropy_R: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        """d log p_t / d logit_v = [v = t] - p_v; d H / d logit_v = -p_v (log p_v + H)."""
        if grad_log_probs_R is None and grad_entropy_R is None:
            return None, None, None, None
        log_softmax_RV, index_R1, here_R, entropy_R = ctx.saved_tensors
        factor = 0.0
        if grad_log_probs_R is not None:
            factor = factor - grad_log_probs_R.unsqueeze(-1)
        if grad_entropy_R is not None:
            factor = factor - grad_entropy_R.unsqueeze(-1) * (log_softmax_RV + entropy_R.unsqueeze(-1))
        grad_RV = log_softmax_RV.exp().mul_(factor)
        if grad_log_probs_R is not None:
            grad_RV.scatter_add_(-1, index_R1, (grad_log_probs_R * here_R).unsqueeze(-1))
        return grad_RV.to(ctx.dtype), None, None, None
