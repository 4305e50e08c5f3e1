"""Trainer: one training rank, from a Batch to new weights.

Every rank calls the same methods in the same order; all of them are collective. Nothing here knows of Ray: an actor,
torchrun or a test makes a Trainer from a rank, a world size and an address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slime.config import Config, architecture, checkpoint_dir
from slime.data.batch import Batch
from slime.models import export_hf, family_of, read_hf_config, save_hf
from slime.platform.device import peak
from slime.schedule import forward_flops
from slime.training import optimizer_state
from slime.training.advantages import Advantages
from slime.training.build import build
from slime.training.checkpoint import Checkpoints
from slime.training.determinism import make_deterministic
from slime.training.forward import Scoring
from slime.training.losses import LOSSES, MAXIMA
from slime.training.packing import MicroBatch, Packer
from slime.training.parallel import start
from slime.training.recording import write_micro_batches
from slime.training.report import Report
from slime.training.saved import Progress, Saved
from slime.training.scores import FixedScores, frozen_models
from slime.training.step import optimizer_step

PAD_MULTIPLE_ON_GPU = 128  # rows of a few lengths, so that the allocator can use its blocks again


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Metrics under their public names, equal on all ranks."""

    rollout: dict[str, float]  # rollout/* and perf/*
    steps: list[dict[str, float]]  # train/*, one dict an optimizer step


class Trainer:
    """Starts from --load's checkpoint, where there is one, else from the weights of --hf-checkpoint.

    Raises:
        ValueError: options that contradict each other, the model, or the number of ranks.
        slime.models.CheckpointError, ModelError: weights or a model that can't be read.
    """

    def __init__(self, config: Config, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        self.config = config
        self.is_rewarded = config.loss_type != "sft_loss"
        self.has_advantages = self.is_rewarded and not config.disable_compute_advantages_and_returns
        if config.megatron.get("deterministic_mode"):
            make_deterministic()
        frozen = frozen_models(config)
        family = family_of(read_hf_config(config.hf_checkpoint))
        self.architecture = architecture.read(config.hf_checkpoint)
        self.parallel = start(config, rank, world_size, master_addr, master_port)
        try:
            checkpoint = checkpoint_dir.to_load(config)
            saved = None if checkpoint is None else Saved.read(checkpoint)
            self.model = build(config, self.parallel, family, frozen=frozen, saved=saved)
            self.checkpoints = Checkpoints(config, self.model)
            self.loaded = Progress() if saved is None else self.checkpoints.resume(saved)
        except Exception:
            self.parallel.stop()
            raise
        self.loss = LOSSES[config.loss_type](config)
        self.scoring = Scoring(
            vocab_size=family.config["vocab_size"],
            temperature=config.rollout_temperature if self.is_rewarded else 1.0,
            chunk_size=config.log_probs_chunk_size,
            recompute=config.recompute_loss_function,
        )
        self.fixed_scores = FixedScores(config, self.model, self.scoring)
        self.advantages = Advantages(config, self.parallel)
        self.peak = peak(self.parallel.device.torch, self.model.config.params_dtype)
        self.num_steps = self.loaded.num_steps  # optimizer steps so far

    @property
    def dp_rank(self) -> int:
        return self.parallel.dp_rank

    @property
    def dp_size(self) -> int:
        return self.parallel.dp_size

    def train(self, rollout_id: int, batch: Batch) -> TrainResult:
        """Trains on this data-parallel rank's Batch of a rollout, one optimizer step for each of its steps.

        Raises:
            ValueError: the Batch lacks what the options need.
            RuntimeError: a gradient is not finite. A note says in which rollout and step.
        """
        if not batch.steps:
            raise ValueError(f"rollout {rollout_id} has no samples to train on")
        self.checkpoints.settle()
        report = Report(self.parallel)
        with report.clock("train"):
            with report.clock("data_preprocess"):
                steps = self.pack(batch)
            everything = [micro_batch for step in steps for micro_batch in step]
            if self.has_advantages:
                self._settle()
                self.fixed_scores.fill(everything, report)
                if self.parallel.is_last_stage:
                    self.advantages.fill(everything)
            if self.config.reset_optimizer_states:
                optimizer_state.reset(self.model.optimizer)
            with report.clock("actor_train"):
                figures = [self._step(rollout_id, index, step, report) for index, step in enumerate(steps)]
        if self.config.ref_update_interval and (rollout_id + 1) % self.config.ref_update_interval == 0:
            self._settle()
            self.model.frozen["ref"].refresh(self.model.chunks)
        if self.config.save_debug_train_data is not None:
            path = self.config.save_debug_train_data.format(rollout_id=rollout_id, rank=self.parallel.rank)
            write_micro_batches(path, everything)
        self._describe(batch, everything, report)
        return self._result(batch, report.reduce(), figures)

    def save(self, rollout_id: int, weight_version: int = 0, *, in_background: bool = False) -> None:
        """Writes a checkpoint of --save, after `rollout_id` was trained on. In the background: while training goes on.

        Raises OSError, or Megatron's CheckpointException, when it can't be written; the one before stays the latest.
        """
        self._settle()
        self.checkpoints.save(
            Progress(rollout_id, self.num_steps, weight_version), in_background=in_background
        )

    def save_hf(self, path: str | Path) -> None:
        """Writes a Hugging Face directory, with tokenizer and config of --hf-checkpoint; whole or not at all."""
        self._settle()
        save_hf(self.model.shard, path, source=self.config.hf_checkpoint)

    def weights(self, bucket_bytes: int, across_pp: bool = False) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Buckets of (Hugging Face name, full tensor), some of them views of live weights; see slime.models.export."""
        self._settle()
        return export_hf(self.model.shard, bucket_bytes, across_pp)

    def close(self) -> None:
        """Waits for a save in the background and ends the process groups. The trainer is of no use afterwards."""
        self.checkpoints.settle(wait=True)
        self.parallel.stop()

    def _settle(self) -> None:
        """Gathers the new parameters now, which --overlap-param-gather leaves to the next forward pass."""
        for chunk in self.model.chunks:
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)

    # One rollout, in the order of `train`.

    def pack(self, batch: Batch) -> list[list[MicroBatch]]:
        """The rows of this rank on its device, by step."""
        self._check(batch)
        packer = Packer(
            batch,
            device=self.parallel.device.torch,
            cp_rank=self.parallel.cp_rank,
            cp_size=self.parallel.cp_size,
            cp_group=self.parallel.cp_group,
            tp_size=self.parallel.tp_size if self.model.config.sequence_parallel else 1,
            pad_multiple=PAD_MULTIPLE_ON_GPU if self.parallel.device.is_cuda else 1,
        )
        return [[packer.pack(samples, step) for samples in step.micro_batches] for step in batch.steps]

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
        if self.has_advantages and config.use_opd and config.opd_type == "sglang" and batch.teacher_log_probs_R is None:
            raise ValueError(
                "--opd-type sglang: the rollout has no log-probs of a teacher; a custom generate or reward function"
                " sets teacher_log_probs of each sample"
            )

    def _step(self, rollout_id: int, index: int, batches: list[MicroBatch], report: Report) -> dict[str, float]:
        compare = self.is_rewarded and batches[0].rollout_log_probs_R is not None
        compare = compare and (index == 0 or (self.has_advantages and self.fixed_scores.own))
        try:
            sums, figures = optimizer_step(self.model, batches, self.loss, self.scoring, compare=compare)
        except Exception as error:
            error.add_note(
                f"in rollout {rollout_id}, optimizer step {index} of it, on training rank {self.parallel.rank}"
            )
            raise
        names = self.loss.names(compare=compare)
        if self.loss.names_grow:
            names = self.parallel.agree({*names, *(name for of_batch in sums for name in of_batch)})
        for name in names:
            values = [of_batch[name] for of_batch in sums if name in of_batch] if self.parallel.counts_tokens else []
            value = 0.0
            if values:
                value = torch.stack(values).amax() if name in MAXIMA else torch.stack(values).sum()
            report.add(index, name, value, maximum=name in MAXIMA)
        figures |= {"step": float(self.num_steps), "global_batch_size": float(batches[0].step.num_samples)}
        self.num_steps += 1
        return figures

    # Reporting.

    def _describe(self, batch: Batch, batches: list[MicroBatch], report: Report) -> None:
        """Sums over this rank's samples and tokens; `_result` divides them by the number of samples of the rollout."""
        counts_samples = self.parallel.counts_samples
        of_samples = {"response_lengths": batch.response_lengths_N, "total_lengths": batch.total_lengths_N}
        if self.is_rewarded:
            of_samples |= {
                "rewards": batch.rewards_N,
                "raw_reward": batch.raw_rewards_N,
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
            report.add("rollout", name, value)

    def _token_metrics(self, batch: Batch) -> list[str]:
        """Fields of a micro-batch that are reported as means, without their suffix; the same on all ranks."""
        names = ["rollout_log_probs"] if self.is_rewarded and batch.rollout_log_probs_R is not None else []
        if not self.has_advantages:
            return names
        names += [*self.fixed_scores.names, "advantages", "returns"]
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
        rollout = {f"rollout/{name}": total / num_samples for name, total in sections["rollout"].items()}
        perf = {f"perf/{name}": seconds for name, seconds in sections["perf"].items()}
        num_tokens = sections["rollout"]["total_lengths"]
        perf["perf/actor_train_tok_per_s"] = num_tokens / perf["perf/actor_train_time"]
        for name, passes in {"actor_train": 3, "log_probs": 1, "ref_log_probs": 1, "teacher_log_probs": 1}.items():
            if f"perf/{name}_time" in perf:
                flops = passes * sections["flops"]["forward"] / self.parallel.world_size
                perf[f"perf/{name}_tflops"] = flops / perf[f"perf/{name}_time"] / 1e12
        peak_tflops = sections["flops"]["peak"] / self.parallel.world_size / 1e12
        perf["perf/actor_train_mfu"] = perf["perf/actor_train_tflops"] / peak_tflops
        steps = [
            {f"train/{name}": value for name, value in (sections[index] | own).items()}
            for index, own in enumerate(figures)
        ]
        return TrainResult(rollout | perf, steps)
