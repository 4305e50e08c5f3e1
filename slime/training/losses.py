"""Losses of a micro-batch: sums over its tokens, weighted so that they add up to the loss of the step over all ranks.

A loss returns its value and the sums that are reported, by name. A name in MAXIMA is reduced by max, the others by sum.

Shape suffix: R response tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algorithms.kl import kl_estimate
from slime.algorithms.mismatch import mismatch
from slime.algorithms.policy_loss import clipped_policy_loss
from slime.config import Config
from slime.training.forward import Scores
from slime.training.packing import MicroBatch

MEAN_DIFFERENCE = "train_rollout_logprob_abs_diff"
MAX_DIFFERENCE = "train_rollout_logprob_abs_diff_max"
MISMATCH_KL = "train_rollout_kl"
MAXIMA = frozenset({MAX_DIFFERENCE})


class Loss:
    """A mean over samples of their means over unmasked tokens or, with --calculate-per-token-loss, over all tokens."""

    with_entropy = False

    def __init__(self, config: Config) -> None:
        self.per_token = config.calculate_per_token_loss

    def names(self, *, compare: bool) -> tuple[str, ...]:
        """Names of the sums, known also to pipeline stages that do not compute them."""
        return ("loss",)

    def __call__(self, batch: MicroBatch, scores: Scores, *, compare: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        """This micro-batch's part of the loss and of the sums.

        With `compare`, the trainer's log-probs are compared with the engine's: those from before the rollout's training
        if there are any, else the current ones, which is right in the first step alone.
        """
        raise NotImplementedError

    def mean(self, values_R: Tensor, batch: MicroBatch) -> Tensor:
        """This micro-batch's part of the mean over the global batch. Masked tokens count for nothing."""
        if self.per_token:
            return token_mean(values_R, batch)
        return (values_R * batch.weights_R).sum() / max(batch.step.num_samples, 1)


def token_mean(values_R: Tensor, batch: MicroBatch) -> Tensor:
    return (values_R * batch.mask_R).sum() / max(batch.step.num_tokens, 1)


class SFTLoss(Loss):
    """Negative log-likelihood of the responses."""

    def __call__(self, batch: MicroBatch, scores: Scores, *, compare: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.mean(-scores["log_probs"], batch)
        return loss, {"loss": loss.detach()}


class PolicyLoss(Loss):
    """Clipped policy gradient, minus an entropy bonus, plus a KL to the reference.

    The old log-probs, in the ratio, are the trainer's own from before the rollout's training, or the engine's with
    --use-rollout-logprobs; either way they stay fixed over the steps of a rollout.
    """

    with_entropy = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.clip = {"eps_low": config.eps_clip, "eps_high": config.eps_clip_high, "dual_clip": config.eps_clip_c}
        self.use_rollout_log_probs = config.use_rollout_logprobs
        self.entropy_coef = config.entropy_coef
        self.use_kl, self.kl_coef, self.kl_type = config.use_kl_loss, config.kl_loss_coef, config.kl_loss_type
        self.unbiased_kl = config.use_unbiased_kl

    def names(self, *, compare: bool) -> tuple[str, ...]:
        return (
            ("loss", "pg_loss", "entropy_loss", "pg_clipfrac", "ppo_kl")
            + (("kl_loss",) if self.use_kl else ())
            + ((MEAN_DIFFERENCE, MAX_DIFFERENCE, MISMATCH_KL) if compare else ())
        )

    def __call__(self, batch: MicroBatch, scores: Scores, *, compare: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        log_probs_R, entropy_R = scores["log_probs"], scores["entropy"]
        old_R = batch.rollout_log_probs_R if self.use_rollout_log_probs else batch.log_probs_R
        # A masked token was not sampled: its old log-prob may be anything, and its ratio must not become inf * 0.
        log_ratio_R = log_probs_R - torch.where(batch.mask_R > 0, old_R, log_probs_R.detach())
        pg_R, clipped_R = clipped_policy_loss(log_ratio_R, batch.advantages_R, **self.clip)
        pg_loss = loss = self.mean(pg_R, batch)
        entropy = self.mean(entropy_R if self.entropy_coef else entropy_R.detach(), batch)
        sums = {
            "pg_loss": pg_loss,
            "entropy_loss": entropy,
            "pg_clipfrac": self.mean(clipped_R, batch),
            "ppo_kl": self.mean(-log_ratio_R.detach(), batch),
        }
        if self.entropy_coef:
            loss = loss - self.entropy_coef * entropy
        if self.use_kl:
            kl_R = kl_estimate(
                log_probs_R, batch.ref_log_probs_R, self.kl_type, log_ratio_R if self.unbiased_kl else None
            )
            sums["kl_loss"] = self.mean(kl_R, batch)
            loss = loss + self.kl_coef * sums["kl_loss"]
        if compare:
            ours_R = log_probs_R.detach() if batch.log_probs_R is None else batch.log_probs_R
            difference_R, kl_R = mismatch(ours_R, batch.rollout_log_probs_R, batch.mask_R)
            sums[MEAN_DIFFERENCE] = token_mean(difference_R, batch)
            sums[MAX_DIFFERENCE] = torch.cat([difference_R, difference_R.new_zeros(1)]).max()
            sums[MISMATCH_KL] = token_mean(kl_R, batch)
        return loss, {"loss": loss.detach(), **{name: value.detach() for name, value in sums.items()}}
