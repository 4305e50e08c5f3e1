"""A checkpoint that is there: what it says of itself, whether it fits, and its weights.

Weights are loaded before there is an optimizer, so that its master weights are theirs.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from slime.config import Config, checkpoint_dir, checkpoint_files
from slime.config.checkpoint_files import damaged_files, differences
from slime.models import CheckpointError, Family, read_hf_config
from slime.models.names import local_spec_name, names_by_either_spec

STATE = checkpoint_dir.STATE
LACKING = re.compile(r"([\w.]+) from model not in state dict|Missing key in checkpoint state_dict: ([\w./]+\w)")

# Megatron would start a process for this queue, for writers that are processes. Ours are threads of this one.
filesystem_async._results_queue = queue.Queue()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. All that one that starts from --hf-checkpoint has is the defaults."""

    rollout_id: int = -1  # the last one that was trained on
    num_steps: int = 0  # optimizer steps so far
    weight_version: int = 0  # of these weights


@dataclass(frozen=True, slots=True)
class Saved:
    """What state.json says. Weights alone have no progress and, where others wrote them, nothing else either."""

    path: Path
    progress: Progress | None = None
    has_optimizer: bool = False
    has_reference: bool = False  # one that follows the policy, and so is no longer that of --ref-load
    layers: str | None = None  # --transformer-impl of what wrote it, if it is more than weights
    head: str | None = None  # what the last layer gives; Megatron would load a part of one last layer into another
    layout: dict[str, int] | None = None
    mtp_layers: int | None = None  # those for multi-token prediction that it holds
    distributed_optimizer: bool | None = None  # whether the optimizer's state is of Megatron's distributed one

    @classmethod
    def read(cls, path: Path) -> Saved:
        """Raises DamagedCheckpoint when state.json is not as it was written."""
        state = checkpoint_files.read_state(path)
        if state is None:
            return cls(path)
        progress = state.pop("progress")
        return cls(path, **state, progress=progress and Progress(**progress))

    def takes_optimizer(self, config: Config) -> bool:
        """Whether a run takes over its optimizer state as well."""
        return self.progress is not None and not (config.finetune or config.no_load_optim)

    def check(self, family: Family, transformer: TransformerConfig, *, resumed_by: Config | None = None) -> None:
        """Raises ValueError with all the reasons why its weights can't be taken, or a run can't start from it."""
        problems = []
        if resumed_by and not resumed_by.finetune and (lost := checkpoint_files.lost_state(self.path)):
            problems.append(str(lost))
        if lost := checkpoint_files.lost_model(self.path):
            problems.append(str(lost))
        elif (self.path / "config.json").is_file():
            problems += differences(read_hf_config(self.path), family.config)
        if self.layers not in (None, transformer.transformer_impl):
            problems.append(f"its layers are those of --transformer-impl {self.layers}")
        if self.head not in (None, head_of(family)):
            problems.append(f"it gives {self.head} of tokens, where this model gives {head_of(family)}")
        mtp_layers = transformer.mtp_num_layers or 0
        if self.mtp_layers is not None and self.mtp_layers < mtp_layers:
            problems.append("it has no layers for multi-token prediction: leave out --enable-mtp-training")
        if resumed_by and self.takes_optimizer(resumed_by):
            if self.mtp_layers is not None and self.mtp_layers > mtp_layers:
                problems.append("its layers for multi-token prediction were trained as well: add --enable-mtp-training")
            if not self.has_optimizer:
                problems.append("it holds no optimizer state: add --no-load-optim, or --finetune to begin anew")
            elif self.distributed_optimizer not in (None, resumed_by.use_distributed_optimizer):
                option = f"--{'' if self.distributed_optimizer else 'no-'}use-distributed-optimizer"
                problems.append(f"its optimizer state is of {option}: give that, or add --no-load-optim")
            theirs, mine = self.layout["expert"], resumed_by.expert_model_parallel_size
            if transformer.num_moe_experts and theirs != mine:
                problems.append(
                    f"it was saved with --expert-model-parallel-size {theirs}, and Megatron can't divide the optimizer"
                    f" state of experts among {mine}: keep the size, or add --no-load-optim"
                )
        if problems:
            raise ValueError(f"{self.path} does not fit this run:\n  " + "\n  ".join(problems))

    def load_weights(self, chunks: Sequence[nn.Module]) -> None:
        """Into bare models, or wrapped ones. Collective. Raises CheckpointError when they can't be read."""
        loaded = self.load(sharded_weights(chunks))
        for name, chunk in named(chunks):
            chunk.load_state_dict(loaded[name])

    def load(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """What Megatron's `tensors` describe. Collective. Raises CheckpointError when it can't be read."""
        if damaged := damaged_files(self.path):
            raise CheckpointError(f"{self.path} is damaged: " + "; ".join(damaged))
        try:
            self._find_by_other_names(tensors)
            return dist_checkpointing.load(tensors, str(self.path))
        except CheckpointException as error:  # which is no Exception
            raise CheckpointError(f"{self.path} can't be read: {reasons(error)}") from error

    def _find_by_other_names(self, tensors: dict[str, Any]) -> None:
        """Norms are looked for by their names in local layers as well: of Megatron's own, and of slime's before its
        checkpoints had the names of Transformer Engine's."""
        stored = dist_checkpointing.load_tensors_metadata(str(self.path))
        for part in nested_values(tensors):
            if isinstance(part, ShardedTensor) and part.key not in stored:
                others = names_by_either_spec(local_spec_name(part.key))
                part.key = next((name for name in others if name in stored), part.key)


def reasons(error: CheckpointException) -> str:
    """Of one or several ranks."""
    return "; ".join(dict.fromkeys(_reason(str(of_rank[0])) for of_rank in error.failures.values()))


def _reason(text: str) -> str:
    """Without the names of all tensors that are there, which Megatron adds to the one that isn't."""
    lacking = LACKING.search(text)
    if lacking is None:
        return text
    name = lacking[1] or lacking[2]
    of_optimizer = ", since other parameters were trained: add --no-load-optim" if "optimizer." in name else ""
    return f"it has no {name}{of_optimizer}"


def weights_in(directory: str | Path, step: int | None = None) -> Path | Saved:
    """Those of a Hugging Face directory, or of a checkpoint, the latest or that of rollout `step`.

    Raises NoCheckpoint when there is none of `step`.
    """
    if step is None and checkpoint_dir.is_model(directory):
        return Path(directory)
    found = checkpoint_dir.find(directory, step)
    return Path(directory) if found is None else Saved.read(found)


def head_of(family: Family) -> str:
    return "values" if family.has_value_head else "logits"


def layout_of(transformer: TransformerConfig) -> dict[str, int]:
    """What the random states of ranks depend on, and experts' optimizer state."""
    return {
        "tensor": transformer.tensor_model_parallel_size,
        "pipeline": transformer.pipeline_model_parallel_size,
        "context": transformer.context_parallel_size,
        "expert": transformer.expert_model_parallel_size,
        "world": dist.get_world_size(),
    }


def named(chunks: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The bare models by Megatron's names for them."""
    for index, chunk in enumerate(chunks):
        while not hasattr(chunk, "decoder"):
            chunk = chunk.module
        yield "model" if len(chunks) == 1 else f"model{index}", chunk


def metadata() -> dict[str, Any]:
    """How Megatron is to describe this rank's parts: of the model's tensors, so that any layout can read them."""
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
    }


def sharded_weights(chunks: Sequence[nn.Module], prefix: str = "") -> dict[str, Any]:
    """Of each chunk by `prefix` and its name; the names of tensors begin with it as well."""
    return {
        prefix + name: chunk.sharded_state_dict(prefix=prefix, metadata=metadata()) for name, chunk in named(chunks)
    }
