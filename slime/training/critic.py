"""Critic: one training rank of a value function, from a Batch to values, and from returns to new weights.

It has the layout of the policy's ranks: rank r of one holds the tokens of rank r of the other. What is the policy's
alone (a reference, a teacher, advantages) it has not.
"""

from __future__ import annotations

import numpy as np

from slime.config import Config
from slime.config.critic import critic_config
from slime.data.batch import Batch
from slime.models import family_of, read_hf_config, value_model
from slime.training.forward import Scoring, run
from slime.training.handover import collect, distribute
from slime.training.learner import Learner, Prepared, TrainResult
from slime.training.losses import ValueLoss
from slime.training.report import Report


class Critic(Learner):
    """Starts from --critic-load, else from the body of --hf-checkpoint and a head of zeros.

    For each rollout `prepare`, whose values the policy's advantages are made of, and then `update`.
    """

    noun, section = "critic", "critic-train"

    def __init__(self, config: Config, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        config = critic_config(config)
        family = value_model(family_of(read_hf_config(config.hf_checkpoint)))
        super().__init__(config, family, rank, world_size, master_addr, master_port, frozen={})
        self.loss = ValueLoss(config)
        self.scoring = Scoring(vocab_size=0)

    def prepare(self, rollout_id: int, batch: Batch) -> np.ndarray | None:
        """Values of this rank's response tokens, float32 [R]; None on all but the last pipeline stage."""
        if not batch.steps:
            raise ValueError(f"rollout {rollout_id} has no samples to train on")
        self.checkpoints.settle()
        report = Report(self.parallel)
        with report.clock("values"):
            self.prepared = Prepared(rollout_id, batch, self.pack(batch), report)
            batches = self.prepared.micro_batches
            self._settle()
            scored = run(self.model.chunks, batches, self.scoring)
            for micro_batch, scores in zip(batches, scored, strict=self.parallel.is_last_stage):
                micro_batch.values_R = scores["values"]
        return collect(batches, "values_R") if self.parallel.is_last_stage else None

    def update(self, returns_R: np.ndarray | None) -> TrainResult:
        """Fits the values, in one optimizer step for each of the rollout's, to what the policy's rank returned from its
        `prepare`. Raises what `Trainer.train` does."""
        prepared, self.prepared = self.prepared, None
        report = prepared.report
        with report.clock("critic_train"):
            if returns_R is not None:
                distribute(returns_R, prepared.micro_batches, "returns_R")
            figures = self._optimise(prepared)
        sections = report.reduce()
        perf = {f"perf/{name}": seconds for name, seconds in sections["perf"].items()}
        return TrainResult(perf, self._rows(sections, figures))
