"""Trainer: one training rank, from a Batch to new weights.

Every rank calls the same methods in the same order; all of them are collective. Nothing here knows of Ray: an actor,
torchrun or a test makes a Trainer from a rank, a world size and an address.
"""

from __future__ import annotations

import numpy as np
import torch

from slime.config import Config, architecture
from slime.config.hooks import load_hook
from slime.data.batch import Batch
from slime.models import family_of, multi_token_model, read_hf_config
from slime.platform.device import peak
from slime.schedule import forward_flops
from slime.training.advantages import Advantages
from slime.training.forward import Scoring
from slime.training.handover import collect, distribute
from slime.training.learner import Learner, Prepared, TrainResult
from slime.training.losses import LOSSES
from slime.training.packing import MicroBatch
from slime.training.postprocess import Postprocess
from slime.training.profiling import Profile
from slime.training.recording import write_micro_batches
from slime.training.report import Report
from slime.training.routing import Routing, require_experts
from slime.training.scores import FixedScores, frozen_models

BEFORE_STEP = "--custom-megatron-before-train-step-hook-path"


class Trainer(Learner):
    """Of the policy. Starts from --load's checkpoint, where there is one, else from the weights of --hf-checkpoint.

    `train` is `prepare` and then `update`; between the two a critic takes the returns.

    Raises:
        ValueError: options that contradict each other, the model, or the number of ranks.
        slime.models.CheckpointError, ModelError: weights or a model that can't be read.
    """

    noun, section = "training", "train"

    def __init__(self, config: Config, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        config = config.of_role("actor")
        self.is_rewarded = config.loss_type != "sft_loss"
        self.has_advantages = self.is_rewarded and not config.disable_compute_advantages_and_returns
        family = family_of(read_hf_config(config.hf_checkpoint))
        if config.enable_mtp_training:
            family = multi_token_model(family)
        self.architecture = architecture.read(config.hf_checkpoint)
        require_experts(config, self.architecture)
        super().__init__(config, family, rank, world_size, master_addr, master_port, frozen=frozen_models(config))
        self.routing = Routing(config, self.model)
        self.loss = LOSSES[config.loss_type](config)
        self.scoring = Scoring(
            vocab_size=family.config["vocab_size"],
            temperature=config.rollout_temperature if self.is_rewarded else 1.0,
            chunk_size=config.log_probs_chunk_size,
            recompute=config.recompute_loss_function,
        )
        self.fixed_scores = FixedScores(config, self.model, self.scoring, self.routing)
        self.advantages = Advantages(config, self.parallel)
        self.postprocess = Postprocess(config)
        self.before_step = load_hook(BEFORE_STEP, config.custom_megatron_before_train_step_hook_path)
        self.profile = Profile(config, self.parallel)
        self.peak = peak(self.parallel.device.torch, self.model.config.params_dtype)

    def train(self, rollout_id: int, batch: Batch) -> TrainResult:
        """Trains on this data-parallel rank's Batch of a rollout, one optimizer step for each of its steps.

        Raises:
            ValueError: the Batch lacks what the options need.
            RuntimeError: a gradient is not finite. A note says in which rollout and step.
        """
        self.prepare(rollout_id, batch)
        return self.update()

    def prepare(self, rollout_id: int, batch: Batch, values_R: np.ndarray | None = None) -> np.ndarray | None:
        """Scores the rollout, and says what its tokens are worth.

        Args:
            values_R: what the critic's rank of the same place returned from its `prepare`.

        Returns:
            What a critic is fitted to: returns of this rank's response tokens, float32 [R]; None without a critic, and
            on all but the last pipeline stage.
        """
        if not batch.steps:
            raise ValueError(f"rollout {rollout_id} has no samples to train on")
        self._check(batch)
        self.checkpoints.settle()
        report = Report(self.parallel)
        self.profile.start("train_overall", rollout_id)
        with report.clock("train"):
            with report.clock("data_preprocess"):
                steps = self.pack(batch)
            self.prepared = Prepared(rollout_id, batch, steps, report)
            everything = self.prepared.micro_batches
            if values_R is not None:
                distribute(values_R, everything, "values_R")
            if self.has_advantages:
                self._settle()
                rows = None
                if batch.scored is not None:
                    packer = self.packer(batch)
                    rows = [packer.pack(samples, batch.steps[0]) for samples in batch.scored]
                with self.profile.of("train_log_probs", rollout_id):
                    self.fixed_scores.fill(everything, report, rows=rows)
                if self.parallel.is_last_stage:
                    self.advantages.fill(everything)
                    self.postprocess.apply(rollout_id, everything)
        return None if values_R is None else collect(everything, "returns_R")

    def update(self, *, optimises: bool = True) -> TrainResult:
        """Trains on what was prepared, one optimizer step for each of its steps; or only tells of it."""
        config, (prepared, self.prepared) = self.config, (self.prepared, None)
        rollout_id, batch, report = prepared.rollout_id, prepared.batch, prepared.report
        figures = []
        if optimises:
            profiled = self.profile.of("train_actor", rollout_id)
            with report.clock("train"), report.clock("actor_train"), profiled:
                figures = self._optimise(prepared, compared_steps=self._compared_steps(batch))
        self.profile.stop("train_overall", rollout_id)
        if config.ref_update_interval and (rollout_id + 1) % config.ref_update_interval == 0:
            self._settle()
            self.model.frozen["ref"].refresh(self.model.chunks)
        if config.save_debug_train_data is not None:
            path = config.save_debug_train_data.format(rollout_id=rollout_id, rank=self.parallel.rank)
            write_micro_batches(path, prepared.micro_batches)
        self._describe(batch, prepared.micro_batches, report)
        return self._result(batch, report.reduce(), figures)

    # One rollout, in the order of `train`.

    def _check(self, batch: Batch) -> None:
        config = self.config
        needs_engine = {
            "--use-rollout-logprobs": config.use_rollout_logprobs,
            "--use-tis": config.use_tis,
            "--use-mis": config.use_mis,
            "--get-mismatch-metrics": config.get_mismatch_metrics,
        }
        for option, is_given in needs_engine.items():
            if self.is_rewarded and is_given and batch.rollout_log_probs_R is None:
                raise ValueError(f"{option}: the rollout has no log-probs of the engine")
        if config.use_rollout_routing_replay:
            if batch.routed_experts_TLK is None:
                raise ValueError(
                    "--use-rollout-routing-replay: the rollout has no routed experts of the engine; a custom generate"
                    " function asks for them by return_routed_experts and sets rollout_routed_experts of each sample"
                )
            self.routing.check(batch.routed_experts_TLK.shape)
        if self.has_advantages and config.use_opd and config.opd_type == "sglang" and batch.teacher_log_probs_R is None:
            raise ValueError(
                "--opd-type sglang: the rollout has no log-probs of a teacher; a custom generate or reward function"
                " sets teacher_log_probs of each sample"
            )

    def _step(self, prepared: Prepared, index: int, *, compare: bool) -> dict[str, float]:
        if self.before_step is not None:
            model = self.model
            self.before_step(self.config, prepared.rollout_id, index, model.chunks, model.optimizer, model.schedule)
        with self.routing.training(prepared.steps[index]):
            return super()._step(prepared, index, compare=compare)

    def _compared_steps(self, batch: Batch) -> int:
        """In how many steps of a rollout log-probs are compared with the engine's: those of the weights that
        sampled."""
        if not self.is_rewarded or batch.rollout_log_probs_R is None:
            return 0
        return len(batch.steps) if self.has_advantages and self.fixed_scores.own else 1

    # Reporting.

    def _describe(self, batch: Batch, batches: list[MicroBatch], report: Report) -> None:
        """Sums over this rank's samples and tokens; `_result` divides them by the number of samples of the rollout."""
        counts_samples = self.parallel.counts_samples
        of_samples = {"response_lengths": batch.response_lengths_N, "total_lengths": batch.total_lengths_N}
        if self.is_rewarded:
            of_samples |= {
                "rewards": batch.rewards_N,
                "truncated": batch.truncated_N,
            }
        for name, values_N in of_samples.items():
            report.add("rollout", name, float(np.sum(values_N)) if counts_samples else 0.0)
        flops_N = forward_flops(self.architecture, batch.total_lengths_N, batch.response_lengths_N)
        report.add("flops", "forward", float(flops_N.sum()) if counts_samples else 0.0)
        report.add("flops", "peak", self.peak.flops)
        for name in self._token_metrics(batch):
            value: torch.Tensor | float = 0.0
            if self.parallel.counts_tokens:
                value = torch.stack([(getattr(b, f"{name}_R") * b.weights_R).sum() for b in batches]).sum()
            report.add("tokens", name, value)

    def _token_metrics(self, batch: Batch) -> list[str]:
        """Fields of a micro-batch that are reported as means, without their suffix; the same on all ranks."""
        names = ["rollout_log_probs"] if self.is_rewarded and batch.rollout_log_probs_R is not None else []
        if not self.has_advantages:
            return names
        names += [*self.fixed_scores.names, "advantages", "returns", *(["values"] if self.config.has_critic else [])]
        if "ref" in self.model.frozen:
            names.append("kl")
        if self.config.use_opd:
            names.append("opd_reverse_kl")
            if "teacher" not in self.model.frozen:
                names.append("teacher_log_probs")
        return names

    def _result(
        self, batch: Batch, sections: dict[object, dict[str, float]], figures: list[dict[str, float]]
    ) -> TrainResult:
        num_samples = max(sum(step.num_samples for step in batch.steps), 1)
        num_wholes = max(sum(step.num_wholes for step in batch.steps), 1)  # by which the weights of tokens add up to 1
        rollout = {f"rollout/{name}": total / num_samples for name, total in sections["rollout"].items()}
        rollout |= {f"rollout/{name}": total / num_wholes for name, total in sections.get("tokens", {}).items()}
        perf = {f"perf/{name}": seconds for name, seconds in sections["perf"].items()}
        if "perf/actor_train_time" in perf:
            perf["perf/actor_train_tok_per_s"] = sections["rollout"]["total_lengths"] / perf["perf/actor_train_time"]
        for name, passes in {"actor_train": 3, "log_probs": 1, "ref_log_probs": 1, "teacher_log_probs": 1}.items():
            if f"perf/{name}_time" in perf:
                flops = passes * sections["flops"]["forward"] / self.parallel.world_size
                perf[f"perf/{name}_tflops"] = flops / perf[f"perf/{name}_time"] / 1e12
        if "perf/actor_train_tflops" in perf:
            peak_tflops = sections["flops"]["peak"] / self.parallel.world_size / 1e12
            perf["perf/actor_train_mfu"] = perf["perf/actor_train_tflops"] / peak_tflops
        return TrainResult(rollout | perf, self._rows(sections, figures))
