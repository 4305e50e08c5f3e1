"""Losses of a micro-batch: sums over its tokens, weighted so that they add up to the loss of the step over all ranks.

A loss returns its value and the sums that are reported, by name. A name in MAXIMA is reduced by max, the others by sum.

Shape suffixes: R response tokens of this rank · S those of whole samples · V this rank's part of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algorithms.kl import kl_estimate
from slime.algorithms.mismatch import mismatch
from slime.algorithms.policy_loss import cispo_loss, clipped_policy_loss
from slime.algorithms.sequences import off_policy_mask, sequence_log_ratio
from slime.algorithms.value_loss import clipped_value_loss
from slime.config import Config
from slime.config.hooks import load_hook
from slime.training.columns import columns
from slime.training.corrections import correction_of
from slime.training.forward import Scores
from slime.training.packing import MicroBatch
from slime.training.scores import old_log_probs

MEAN_DIFFERENCE = "train_rollout_logprob_abs_diff"
MAX_DIFFERENCE = "train_rollout_logprob_abs_diff_max"
MISMATCH_KL = "train_rollout_kl"
MISMATCH = (MEAN_DIFFERENCE, MAX_DIFFERENCE, MISMATCH_KL)
MAXIMA = frozenset({MAX_DIFFERENCE})
CUSTOM_LOSS = "--custom-loss-function-path"
CUSTOM_REDUCER = "--custom-pg-loss-reducer-function-path"


class Loss:
    """A mean over samples of their means over unmasked tokens or, with --calculate-per-token-loss, over all tokens."""

    extras: tuple[str, ...] = ()  # what it needs besides log-probs
    names_grow = False  # whether a user's function adds names that only those who call it know

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
        return self.total(values_R, batch) / self.size(batch)

    def total(self, values_R: Tensor, batch: MicroBatch) -> Tensor:
        """The same before it is divided: a sum over samples of their means, or over tokens."""
        return (values_R * (batch.mask_R if self.per_token else batch.weights_R)).sum()

    def size(self, batch: MicroBatch) -> int:
        """Samples of the global batch, one that fanned out being one, or its unmasked tokens."""
        return max(batch.step.num_tokens if self.per_token else batch.step.num_wholes, 1)


def token_mean(values_R: Tensor, batch: MicroBatch) -> Tensor:
    return (values_R * batch.mask_R).sum() / max(batch.step.num_tokens, 1)


def compared_with_engine(batch: MicroBatch, log_probs_R: Tensor) -> dict[str, Tensor]:
    """The figures of MISMATCH."""
    ours_R = log_probs_R.detach() if batch.log_probs_R is None else batch.log_probs_R
    difference_R, kl_R = mismatch(ours_R, batch.rollout_log_probs_R, batch.mask_R)
    return {
        MEAN_DIFFERENCE: token_mean(difference_R, batch),
        MAX_DIFFERENCE: torch.cat([difference_R, difference_R.new_zeros(1)]).max(),
        MISMATCH_KL: token_mean(kl_R, batch),
    }


class SFTLoss(Loss):
    """Negative log-likelihood of the responses."""

    def __call__(self, batch: MicroBatch, scores: Scores, *, compare: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.mean(-scores["log_probs"], batch)
        return loss, {"loss": loss.detach()}


class CustomLoss(Loss):
    """A user's function of the logits of response tokens (docs/algorithms.md says what it is given).

    It is not asked about micro-batches without samples.
    """

    extras = ("logits",)
    names_grow = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.function = load_hook(CUSTOM_LOSS, config.custom_loss_function_path)

    def names(self, *, compare: bool) -> tuple[str, ...]:
        return ("loss", *(MISMATCH if compare else ()))

    def __call__(self, batch: MicroBatch, scores: Scores, *, compare: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        if not len(batch.samples):
            nothing = scores["logits"].sum() * 0.0
            return nothing, {"loss": nothing.detach()}
        data = columns([batch], whole=False)
        data["current_log_probs"] = batch.samples.split_here(scores["log_probs"])
        total, sums = self.function(self.config, data, scores["logits"], lambda values_R: self.total(values_R, batch))
        size = self.size(batch)
        loss = total / size
        sums = {name: torch.as_tensor(value, device=loss.device).detach() / size for name, value in sums.items()}
        if compare:
            sums |= compared_with_engine(batch, scores["log_probs"])
        return loss, {**sums, "loss": loss.detach()}


class PolicyLoss(Loss):
    """Clipped policy gradient, minus an entropy bonus, plus a KL to the reference.

    The old log-probs, in the ratio, are the trainer's own from before the rollout's training, or the engine's with
    --use-rollout-logprobs; either way they stay fixed over the steps of a rollout.
    """

    extras = ("entropy",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.estimator = config.advantage_estimator
        self.range = {"eps_low": config.eps_clip, "eps_high": config.eps_clip_high}
        self.use_kl, self.kl_coef = config.use_kl_loss, config.kl_loss_coef
        self.correction = correction_of(config)
        self.corrects = config.use_tis or config.use_mis  # else it is only measured
        self.names_grow = self.correction is not None and not self.correction.names
        self.reducer = load_hook(CUSTOM_REDUCER, config.custom_pg_loss_reducer_function_path)

    def names(self, *, compare: bool) -> tuple[str, ...]:
        return (
            ("loss", "pg_loss", "entropy_loss", "pg_clipfrac", "ppo_kl")
            + (("opsm_clipfrac",) if self.config.use_opsm else ())
            + (("ois", *self.correction.names) if self.correction else ())
            + (("kl_loss",) if self.use_kl else ())
            + (MISMATCH if compare else ())
        )

    def __call__(self, batch: MicroBatch, scores: Scores, *, compare: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        log_probs_R, entropy_R = scores["log_probs"], scores["entropy"]
        # A masked token was not sampled: its old log-prob may be anything, and its ratio must not become inf * 0.
        old_R = torch.where(batch.mask_R > 0, old_log_probs(self.config, batch), log_probs_R.detach())
        log_ratio_R = log_probs_R - old_R
        figures = {"ppo_kl": -log_ratio_R.detach()}
        pg_R = self._policy_gradient(batch, log_probs_R, log_ratio_R, figures)
        pg_loss = loss = self._reduced(pg_R, batch)
        entropy_coef = self.config.entropy_coef
        entropy = self.mean(entropy_R if entropy_coef else entropy_R.detach(), batch)
        sums = {"pg_loss": pg_loss, "entropy_loss": entropy}
        if entropy_coef:
            loss = loss - entropy_coef * entropy
        if self.use_kl:
            weight_R = log_ratio_R if self.config.use_unbiased_kl else None
            reference_R = torch.where(batch.mask_R > 0, batch.ref_log_probs_R, log_probs_R.detach())  # as for old_R
            kl_R = kl_estimate(log_probs_R, reference_R, self.config.kl_loss_type, weight_R)
            sums["kl_loss"] = self.mean(kl_R, batch)
            loss = loss + self.kl_coef * sums["kl_loss"]
        sums |= {name: self.mean(values_R, batch) for name, values_R in figures.items()}
        if compare:
            sums |= compared_with_engine(batch, log_probs_R)
        return loss, {"loss": loss.detach(), **{name: value.detach() for name, value in sums.items()}}

    def _policy_gradient(
        self, batch: MicroBatch, log_probs_R: Tensor, log_ratio_R: Tensor, figures: dict[str, Tensor]
    ) -> Tensor:
        """The loss of each token; what is to be reported of it goes into `figures`."""
        samples, advantages_R = batch.samples, batch.advantages_R
        if self.estimator == "cispo":
            pg_R, figures["pg_clipfrac"] = cispo_loss(log_probs_R, log_ratio_R, advantages_R, **self.range)
        else:
            ratio_R = log_ratio_R
            if self.estimator == "gspo":
                ratio_R = sequence_log_ratio(log_ratio_R, samples.mean(log_ratio_R, batch.mask_R))
            pg_R, figures["pg_clipfrac"] = clipped_policy_loss(
                ratio_R, advantages_R, **self.range, dual_clip=self.config.eps_clip_c
            )
        if self.config.use_opsm:
            mean_log_ratio_R = samples.mean(log_ratio_R, batch.mask_R)
            mean_advantages_R = samples.mean(advantages_R, batch.mask_R)
            keep_R = off_policy_mask(mean_log_ratio_R, mean_advantages_R, self.config.opsm_delta)
            pg_R = pg_R * keep_R
            figures["opsm_clipfrac"] = 1 - keep_R
        if self.correction is not None:
            corrected_R, of_correction = self.correction(pg_R, batch)
            figures |= {"ois": log_ratio_R.detach().exp(), **of_correction}
            pg_R = corrected_R if self.corrects else pg_R
        return pg_R

    def _reduced(self, pg_R: Tensor, batch: MicroBatch) -> Tensor:
        """The mean or, with the user's reducer, what it makes of samples, divided by their number or that of tokens."""
        if self.reducer is None or not len(batch.samples):
            return self.mean(pg_R, batch)
        samples = batch.samples
        data = samples.batch
        reduce = self.reducer(
            data.total_lengths_N[samples.positions_N].tolist(),
            data.response_lengths_N[samples.positions_N].tolist(),
            samples.split(samples.mask_S),
            self.per_token,
        )
        total = reduce(samples.whole(pg_R)) / self.size(batch)
        if samples.group is None:
            return total
        # Each context-parallel rank has the gradient of its own tokens, but the value of all of them.
        return total - total.detach() * (1 - 1 / samples.group.size())


class ValueLoss(Loss):
    """Squared distance of the critic's values from the returns, clipped at the values from before the update."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.clip = config.value_clip

    def names(self, *, compare: bool) -> tuple[str, ...]:
        return ("loss", "value_loss", "value_clipfrac")

    def __call__(self, batch: MicroBatch, scores: Scores, *, compare: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        loss_R, clipped_R = clipped_value_loss(scores["values"], batch.values_R, batch.returns_R, self.clip)
        loss = self.mean(loss_R, batch)
        sums = {"loss": loss.detach(), "value_loss": loss.detach(), "value_clipfrac": self.mean(clipped_R, batch)}
        return loss, sums


LOSSES = {"policy_loss": PolicyLoss, "sft_loss": SFTLoss, "custom_loss": CustomLoss}
