"""Log-probs that stay fixed while a rollout is trained on: under the policy of before, the reference, the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slime.config import Config
from slime.config.hooks import load_hook
from slime.training.build import Model
from slime.training.forward import Scores, Scoring, run
from slime.training.packing import MicroBatch
from slime.training.report import Report
from slime.training.routing import Routing
from slime.training.saved import Saved, weights_in
from slime.training.weights import WeightCopy

BEFORE_PASS = "--custom-megatron-before-log-prob-hook-path"


def frozen_models(config: Config) -> dict[str, Path | Saved]:
    """Models besides the policy whose log-probs are needed, by the prefix of these: the weights of each.

    Raises NoCheckpoint when --ref-ckpt-step or --opd-teacher-ckpt-step is not there.
    """
    models = {}
    if config.loss_type != "sft_loss":
        if config.use_kl_loss or config.kl_coef > 0:
            models["ref"] = weights_in(config.ref_load, config.ref_ckpt_step)
        if config.use_opd and config.opd_type == "megatron":
            models["teacher"] = weights_in(config.opd_teacher_load, config.opd_teacher_ckpt_step)
    return models


class FixedScores:
    """Fills `log_probs_R`, `ref_log_probs_R` and `teacher_log_probs_R` of micro-batches, as far as they are needed.

    The policy of before is that of the weights as they are now or, with --keep-old-actor, as they were at the last
    call: when generation is one rollout ahead, those are the weights that sampled.
    """

    def __init__(self, config: Config, model: Model, scoring: Scoring, routing: Routing) -> None:
        self.model, self.scoring, self.routing = model, scoring, routing
        self.config = config
        self.hook = load_hook(BEFORE_PASS, config.custom_megatron_before_log_prob_hook_path)
        self.keeps_old = config.keep_old_actor
        self.old_actor: WeightCopy | None = None
        self.own = not config.use_rollout_logprobs or config.get_mismatch_metrics
        self.own_extras = ("entropy",) if config.use_rollout_entropy else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Fields of a micro-batch that are filled, without their suffix."""
        own = ("log_probs", *self.own_extras) if self.own else self.own_extras
        return (*(f"{name}_log_probs" for name in self.model.frozen), *own)

    def fill(self, batches: Sequence[MicroBatch], report: Report, *, rows: Sequence[MicroBatch] | None = None) -> None:
        """`rows` are the same samples in other micro-batches, which the passes then go over."""
        for name, weights in self.model.frozen.items():
            with report.clock(f"{name}_log_probs"):
                scores = self._scores(rows or batches, weights, prefix=f"{name}_")
                _hand_over(scores, "log_probs", rows, batches, f"{name}_log_probs_R")
        if self.own or self.own_extras:
            with report.clock("log_probs"), self.routing.scoring(rows or batches):
                scores = self._scores(rows or batches, self.old_actor, self.own_extras)
                for name in (*(("log_probs",) if self.own else ()), *self.own_extras):
                    _hand_over(scores, name, rows, batches, f"{name}_R")
        if self.keeps_old and self.old_actor is None:
            self.old_actor = WeightCopy(self.model.chunks)
        elif self.keeps_old:
            self.old_actor.refresh(self.model.chunks)

    def _scores(
        self,
        batches: Sequence[MicroBatch],
        weights: WeightCopy | None,
        extras: tuple[str, ...] = (),
        *,
        prefix: str = "",
    ) -> list[Scores]:
        """Under these weights or, for None, the current ones. {} for each on all but the last pipeline stage."""
        chunks = self.model.chunks
        with nullcontext() if weights is None else weights.in_place(chunks):
            if self.hook is not None:
                self.hook(self.config, chunks, prefix)
            return run(chunks, batches, self.scoring, extras=extras) or [{} for _ in batches]


def _hand_over(
    scores: Sequence[Scores],
    name: str,
    rows: Sequence[MicroBatch] | None,
    batches: Sequence[MicroBatch],
    field: str,
) -> None:
    """Gives the field of each micro-batch what was computed of its response tokens, there or in other `rows`."""
    if rows is None:
        for batch, of_batch in zip(batches, scores, strict=True):
            setattr(batch, field, of_batch.get(name))
    elif scores and name in scores[0]:
        computed = torch.cat([of_row[name] for of_row in scores])
        order = np.argsort(np.concatenate([row.source_R for row in rows]))
        sources = [batch.source_R for batch in batches]
        # Both hold the same tokens: the n-th of one in order of the Batch is the n-th of the other.
        wanted = np.empty_like(order)
        wanted[np.argsort(np.concatenate(sources))] = order
        parts = computed[torch.from_numpy(wanted).to(computed.device)].split([len(source) for source in sources])
        for batch, part in zip(batches, parts, strict=True):
            setattr(batch, field, part)


def old_log_probs(config: Config, batch: MicroBatch) -> Tensor:
    """Of the policy that the ratio compares with; they stay the same over the steps of a rollout."""
    return batch.rollout_log_probs_R if config.use_rollout_logprobs else batch.log_probs_R
