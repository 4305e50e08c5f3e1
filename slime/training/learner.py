"""Learner: a model on one training rank, and what it needs to learn: groups, weights, optimizer, checkpoints.

What the policy and its critic have in common. All methods are collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from slime.config import Config, checkpoint_dir
from slime.config.hooks import load_hook
from slime.data.batch import Batch
from slime.models import Family, export_hf, save_hf
from slime.training import optimizer_state
from slime.training.build import build
from slime.training.checkpoint import Checkpoints
from slime.training.determinism import make_deterministic
from slime.training.forward import MTP_LOSS, Scoring
from slime.training.losses import MAXIMA, Loss
from slime.training.memory_history import MemoryHistory
from slime.training.packing import MicroBatch, Packer
from slime.training.parallel import start
from slime.training.report import Report
from slime.training.saved import Progress, Saved
from slime.training.step import optimizer_step

INIT = "--custom-megatron-init-path"
PAD_MULTIPLE_ON_GPU = 128  # rows of a few lengths, so that the allocator can use its blocks again


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Metrics under their public names, equal on all ranks."""

    rollout: dict[str, float]  # rollout/* and perf/*
    steps: list[dict[str, float]]  # train/*, or critic-train/*, one dict an optimizer step


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rollout that is ready to be trained on: all is there that stays fixed meanwhile."""

    rollout_id: int
    batch: Batch
    steps: list[list[MicroBatch]]  # of each optimizer step
    report: Report

    @property
    def micro_batches(self) -> list[MicroBatch]:
        return [micro_batch for step in self.steps for micro_batch in step]


class Learner:
    """Starts from the checkpoint of `load`, where there is one, else from the weights of `hf_checkpoint`.

    `frozen` are models of the same architecture that only score: where their weights are, by name.

    Raises:
        ValueError: options that contradict each other, the model, or the number of ranks.
        slime.models.CheckpointError, ModelError: weights or a model that can't be read.
    """

    noun: str  # what messages call it
    section: str  # of the metrics of optimizer steps
    loss: Loss
    scoring: Scoring

    def __init__(
        self,
        config: Config,
        family: Family,
        rank: int,
        world_size: int,
        master_addr: str,
        master_port: int,
        *,
        frozen: Mapping[str, Path | Saved],
    ) -> None:
        self.config = config
        self.vocab_size = family.config["vocab_size"]
        if config.megatron.get("deterministic_mode"):
            make_deterministic()
        self.parallel = start(config, rank, world_size, master_addr, master_port)
        try:
            self.memory = MemoryHistory(config, self.parallel, self.noun)
            if (initialise := load_hook(INIT, config.custom_megatron_init_path)) is not None:
                initialise(config)
            checkpoint = checkpoint_dir.to_load(config)
            saved = None if checkpoint is None else Saved.read(checkpoint)
            self.model = build(config, self.parallel, family, frozen=frozen, saved=saved)
            self.checkpoints = Checkpoints(config, self.model)
            self.loaded = Progress() if saved is None else self.checkpoints.resume(saved)
        except Exception:
            self.parallel.stop()
            raise
        self.num_steps = self.loaded.num_steps  # optimizer steps so far
        self.prepared: Prepared | None = None  # between `prepare` and `update`

    @property
    def dp_rank(self) -> int:
        return self.parallel.dp_rank

    @property
    def dp_size(self) -> int:
        return self.parallel.dp_size

    def save(self, rollout_id: int, weight_version: int = 0, *, in_background: bool = False) -> None:
        """Writes a checkpoint of --save, after `rollout_id` was trained on. In the background: while training goes on.

        Raises OSError, or Megatron's CheckpointException, when it can't be written; the one before stays the latest.
        """
        self._settle()
        self.checkpoints.save(Progress(rollout_id, self.num_steps, weight_version), in_background=in_background)

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
        self.memory.write()
        # Autograd's nodes hold model and optimizer by hooks that no garbage collector sees, and both hold the nodes.
        self.model.config.grad_scale_func = None
        for chunk in self.model.chunks:
            chunk.grad_accs.clear()
        self.parallel.stop()

    def _settle(self) -> None:
        """Gathers the new parameters now, which --overlap-param-gather leaves to the next forward pass."""
        for chunk in self.model.chunks:
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)

    # One rollout.

    def pack(self, batch: Batch) -> list[list[MicroBatch]]:
        """The rows of this rank on its device, by step."""
        batch.check(self.vocab_size)
        packer = self.packer(batch)
        return [[packer.pack(samples, step) for samples in step.micro_batches] for step in batch.steps]

    def packer(self, batch: Batch) -> Packer:
        usual_multiple = PAD_MULTIPLE_ON_GPU if self.parallel.device.is_cuda else 1
        return Packer(
            batch,
            device=self.parallel.device.torch,
            cp_rank=self.parallel.cp_rank,
            cp_size=self.parallel.cp_size,
            cp_group=self.parallel.cp_group,
            tp_size=self.parallel.tp_size if self.model.config.sequence_parallel else 1,
            pad_multiple=self.config.data_pad_size_multiplier or usual_multiple,
        )

    def _optimise(self, prepared: Prepared, *, compared_steps: int = 0) -> list[dict[str, float]]:
        """One optimizer step for each of the rollout's. The figures of each; its sums are in the report.

        In the first `compared_steps` the loss compares log-probs with the engine's.
        """
        if self.config.reset_optimizer_states:
            optimizer_state.reset(self.model.optimizer)
        figures = [self._step(prepared, index, compare=index < compared_steps) for index in range(len(prepared.steps))]
        self.memory.after_rollout()
        return figures

    def _step(self, prepared: Prepared, index: int, *, compare: bool) -> dict[str, float]:
        batches, report = prepared.steps[index], prepared.report
        try:
            sums, figures = optimizer_step(self.model, batches, self.loss, self.scoring, compare=compare)
        except Exception as error:
            error.add_note(
                f"in rollout {prepared.rollout_id}, optimizer step {index} of it, on {self.noun} rank"
                f" {self.parallel.rank}"
            )
            raise
        names = self.loss.names(compare=compare) + ((MTP_LOSS,) if self.model.config.mtp_num_layers else ())
        if self.loss.names_grow:
            names = self.parallel.agree({*names, *(name for of_batch in sums for name in of_batch)})
        for name in names:
            values = [of_batch[name] for of_batch in sums if name in of_batch] if self.parallel.counts_tokens else []
            value = 0.0
            if values:
                value = torch.stack(values).amax() if name in MAXIMA else torch.stack(values).sum()
            report.add(index, name, value, maximum=name in MAXIMA)
        figures |= {"step": float(self.num_steps), "global_batch_size": float(batches[0].step.num_wholes)}
        self.num_steps += 1
        return figures

    def _rows(
        self, sections: dict[object, dict[str, float]], figures: list[dict[str, float]]
    ) -> list[dict[str, float]]:
        return [
            {f"{self.section}/{name}": value for name, value in (sections[index] | own).items()}
            for index, own in enumerate(figures)
        ]
