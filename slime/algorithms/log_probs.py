"""Log-probabilities and entropy from logits whose vocabulary may be divided among tensor-parallel ranks.

Softmax in float32 whatever the logits are. Two small collectives for each call, none on a single rank.

Invariant: besides the logits, and their gradient where it may not take their place, there are only blocks of some rows
at a time. What the backward pass needs of the softmax it makes again from the logits and one sum for each row.

Shape suffixes: R rows, one a token to be scored · B a block of them · V this rank's part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK = 2**20  # logits in a block, 4 MiB in float32: enough to keep a device busy
LEAST = -1000.0  # a logarithm whose exponential is 0 in float32, and times which that is 0: 0 · log 0 is 0
MAX_BLOCKS = 64  # above which blocks grow, so that launching them does not take longer than they do


def log_probs_and_entropy(
    logits_RV: Tensor,
    targets_R: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    vocab_start: int = 0,
    vocab_size: int | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / temperature)[target] of each row and, where asked for, the entropy of the row; both are
    differentiable float32 [R].

    Args:
        targets_R: ids of the whole vocabulary.
        group: the ranks that hold the other parts of the vocabulary; None on a single rank.
        vocab_start: id of this rank's first logit.
        vocab_size: of the whole vocabulary, where logits beyond it are padding; None: all count.
        overwrite: whether the backward pass may write the gradient over the logits, which nobody else then reads.
    """
    width = logits_RV.shape[-1] if vocab_size is None else min(logits_RV.shape[-1], vocab_size - vocab_start)
    how = _How(group, width, temperature, with_entropy, overwrite)
    log_probs_R, entropy_R = _LogProbs.apply(logits_RV, targets_R - vocab_start, how)
    return log_probs_R, entropy_R if with_entropy else None


@dataclass(frozen=True, slots=True)
class _How:
    group: dist.ProcessGroup | None
    width: int  # this rank's logits that count
    temperature: float
    with_entropy: bool
    overwrite: bool

    def blocks(self, logits_RV: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Rows, and those of their logits that count."""
        num_rows = len(logits_RV)
        size = max(1, BLOCK // self.width, -(-num_rows // MAX_BLOCKS))
        for start in range(0, num_rows, size):
            rows = slice(start, start + size)
            yield rows, logits_RV[rows, : self.width]

    def shifted(self, logits_BV: Tensor, largest_B1: Tensor) -> Tensor:
        """A new tensor in float32, as largest_B1 is."""
        if self.temperature != 1.0:
            logits_BV = logits_BV.float() / self.temperature
        return logits_BV - largest_B1


class _LogProbs(torch.autograd.Function):
    """With l = logits - max, s = sum exp l: log p = l - log s, and H = log s - sum(l · exp l) / s = -sum p log p."""

    @staticmethod
    def forward(ctx: Any, logits_RV: Tensor, index_R: Tensor, how: _How) -> tuple[Tensor, Tensor]:
        largest_R1 = logits_RV[:, : how.width].amax(dim=-1, keepdim=True).float() / how.temperature
        if how.group is not None:
            dist.all_reduce(largest_R1, dist.ReduceOp.MAX, group=how.group)
        here_R = (index_R >= 0) & (index_R < how.width)
        index_R1 = torch.where(here_R, index_R, 0).unsqueeze(-1)
        sums_R = largest_R1.new_empty(3 if how.with_entropy else 2, len(logits_RV))
        for rows, logits_BV in how.blocks(logits_RV):
            shifted_BV = how.shifted(logits_BV, largest_R1[rows])
            exp_BV = shifted_BV.exp()
            sums_R[0, rows] = exp_BV.sum(dim=-1)
            sums_R[1, rows] = shifted_BV.gather(-1, index_R1[rows]).squeeze(-1).where(here_R[rows], 0)
            if how.with_entropy:
                sums_R[2, rows] = torch.einsum("bv,bv->b", shifted_BV.clamp_(min=LEAST), exp_BV)
        if how.group is not None:
            dist.all_reduce(sums_R, group=how.group)
        log_sum_R = sums_R[0].log()
        entropy_R = log_sum_R - sums_R[2] / sums_R[0] if how.with_entropy else largest_R1.new_empty(0)
        if not how.with_entropy:
            ctx.mark_non_differentiable(entropy_R)
        ctx.save_for_backward(logits_RV, largest_R1, log_sum_R, entropy_R, index_R1, here_R)
        ctx.set_materialize_grads(False)
        ctx.how = how
        return sums_R[1] - log_sum_R, entropy_R

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs_R: Tensor | None, grad_entropy_R: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        """d log p_t / d logit_v = [v = t] - p_v; d H / d logit_v = -p_v (log p_v + H); over the temperature."""
        if grad_log_probs_R is None and grad_entropy_R is None:
            return None, None, None
        logits_RV, largest_R1, log_sum_R, entropy_R, index_R1, here_R = ctx.saved_tensors
        how: _How = ctx.how
        if grad_log_probs_R is not None:
            grad_log_probs_R = grad_log_probs_R / how.temperature
        if grad_entropy_R is not None:
            grad_entropy_R = grad_entropy_R / how.temperature
        grad_RV = logits_RV if how.overwrite else torch.empty_like(logits_RV)
        for rows, logits_BV in how.blocks(logits_RV):
            log_softmax_BV = how.shifted(logits_BV, largest_R1[rows]).sub_(log_sum_R[rows, None])
            factor = 0.0
            if grad_log_probs_R is not None:
                factor = factor - grad_log_probs_R[rows, None]
            if grad_entropy_R is not None:
                log_softmax_BV.clamp_(min=LEAST)
                factor = factor - grad_entropy_R[rows, None] * (log_softmax_BV + entropy_R[rows, None])
            grad_BV = log_softmax_BV.exp_().mul_(factor)
            if grad_log_probs_R is not None:
                grad_BV.scatter_add_(-1, index_R1[rows], (grad_log_probs_R * here_R)[rows, None])
            grad_RV[rows, : how.width] = grad_BV
        grad_RV[:, how.width :] = 0
        return grad_RV, None, None
