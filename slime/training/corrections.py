"""Off-policy corrections: each token's loss times a weight for how its log-prob by the trainer, from before the
rollout's training, differs from that by the engine that sampled it.

A weight is 1 where both agree. What a correction leaves out counts as 0 in a mean, whose denominator stays: that of
the global batch is known up front, and one rank's micro-batch must not change another's.

Shape suffixes: R response tokens of this rank · S those of whole samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from slime.algorithms.off_policy import masked_weights, truncated_weights
from slime.config import Config
from slime.config.hooks import load_hook
from slime.training.packing import MicroBatch

CUSTOM = "--custom-tis-function-path"


class Correction(Protocol):
    names: tuple[str, ...]  # of the figures that are known up front

    def __call__(self, loss_R: Tensor, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The corrected loss [R], and figures of each token [R], to be averaged."""


def correction_of(config: Config) -> Correction | None:
    """What the options ask for, also if only to be measured (--get-mismatch-metrics)."""
    if config.custom_tis_function_path is not None:
        return CustomTIS(config)
    if config.use_mis:
        return MIS(config)
    if config.use_tis or config.get_mismatch_metrics:
        return TIS(config)
    return None


class TIS:
    """Truncated importance sampling, token by token."""

    names = ("tis", "tis_clipfrac", "tis_abs")

    def __init__(self, config: Config) -> None:
        self.low, self.high = config.tis_clip_low, config.tis_clip

    def __call__(self, loss_R: Tensor, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio_R = engine_log_ratio(batch)
        ratio_R, weight_R = log_ratio_R.exp(), truncated_weights(log_ratio_R, self.low, self.high)
        figures = {"tis": ratio_R, "tis_clipfrac": (weight_R != ratio_R).float(), "tis_abs": (ratio_R - 1).abs()}
        return loss_R * weight_R, figures


class MIS:
    """The ratio of a token, of its whole sample (the product over its tokens), or their geometric mean; outside of the
    range it is truncated, or the token or sample masked."""

    names = ("mis", "mis_clipfrac")

    def __init__(self, config: Config) -> None:
        self.level, self.low, self.high = config.mis_level, config.mis_clip_low, config.mis_clip
        self.weights = masked_weights if config.mis_mode == "mask" else truncated_weights

    def __call__(self, loss_R: Tensor, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio_R = engine_log_ratio(batch)
        if self.level == "sequence":
            log_ratio_R = batch.samples.sum(log_ratio_R, batch.mask_R)
        elif self.level == "geometric":
            log_ratio_R = batch.samples.mean(log_ratio_R, batch.mask_R)
        ratio_R, weight_R = log_ratio_R.exp(), self.weights(log_ratio_R, self.low, self.high)
        return loss_R * weight_R, {"mis": weight_R, "mis_clipfrac": (weight_R != ratio_R).float()}


class CustomTIS:
    """A user's function, which sees whole samples; its masks take tokens out."""

    names = ()

    def __init__(self, config: Config) -> None:
        self.config = config
        self.function: Callable[..., Any] = load_hook(CUSTOM, config.custom_tis_function_path)

    def __call__(self, loss_R: Tensor, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        samples = batch.samples
        if not len(samples):
            return loss_R, {}
        data = samples.batch
        loss_S, masks, figures = self.function(
            self.config,
            pg_loss=samples.whole(loss_R),
            train_log_probs=samples.split(samples.whole(batch.log_probs_R)),
            rollout_log_probs=samples.split(samples.whole(batch.rollout_log_probs_R)),
            loss_masks=samples.split(samples.mask_S),
            total_lengths=data.total_lengths_N[samples.positions_N].tolist(),
            response_lengths=data.response_lengths_N[samples.positions_N].tolist(),
        )
        mask_S = torch.cat(list(masks))
        for what, values_S in {"pg_loss": loss_S, "masks": mask_S, **figures}.items():
            if values_S.shape != samples.mask_S.shape:
                raise ValueError(
                    f"{CUSTOM}: {what} came back with the shape {tuple(values_S.shape)},"
                    f" not one value for each of {len(samples.mask_S)} response tokens"
                )
        mask_R = samples.here(mask_S)
        loss_R = torch.where(mask_R > 0, samples.here(loss_S), torch.zeros_like(loss_R))
        return loss_R, {name: samples.here(values_S).detach().float() for name, values_S in figures.items()}


def engine_log_ratio(batch: MicroBatch) -> Tensor:
    """log trainer - log engine, 0 where masked: a token that was not sampled has no probability of being so."""
    difference_R = batch.log_probs_R - batch.rollout_log_probs_R
    return torch.where(batch.mask_R > 0, difference_R, torch.zeros_like(difference_R))
