"""Shard: the tensors of one model that this rank holds, each with its place in the HF checkpoint.

Invariants: entries are in the order of the chunks' parameters, so ranks of one pipeline stage list the same ones in the
same order; every parameter has a mapping, or making the Shard fails and names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slime.models.family import Family, ModelError
from slime.models.mapping import Mapping
from slime.models.names import global_names, local_spec_name


@dataclass(frozen=True)
class Axis:
    """This rank's place in one process group."""

    rank: int
    size: int
    group: dist.ProcessGroup

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Axis:
        return cls(group.rank(), group.size(), group)


@dataclass(frozen=True)
class Entry:
    """One local tensor, with the mappings of its counterparts on all expert-parallel ranks if it is of a routed expert.

    All ranks of `cut` hold a part of the tensor that `mine` describes. The tensors of all `holders`, in order of rank,
    are the parts of the first of `mappings`, then those of the next; None where this rank alone has all of them.
    """

    parameter: Tensor  # the model's own object: Megatron's DDP and optimizers replace its data
    mappings: tuple[Mapping, ...]  # one an expert-parallel rank, or a single one
    mine: Mapping  # the one of them that this rank holds
    cut: Axis
    holders: Axis | None
    is_copy: bool  # of a tensor that another pipeline stage owns: loaded, never exported

    @property
    def tensor(self) -> Tensor:
        """The values that the parameter has now."""
        return self.parameter.detach()


class Shard:
    """Binds a family to `chunks`, the GPTModels that this rank built (one a virtual pipeline stage), bare or wrapped.

    Raises ModelError for parameters that the family does not know, all in one message.
    """

    def __init__(self, family: Family, chunks: Sequence[nn.Module]):
        self.family = family
        models = [_unwrapped(chunk) for chunk in chunks]
        groups = models[0].pg_collection
        self.tensor = Axis.of(groups.tp)
        self.pipeline = Axis.of(groups.pp)
        self.expert = Axis.of(groups.ep)
        self.expert_tensor = Axis.of(groups.expt_tp)
        self.expert_all = Axis.of(groups.tp_ep)
        if self.expert_all.rank != self.expert.rank * self.expert_tensor.size + self.expert_tensor.rank:
            raise ModelError("process groups: expert tensor parallel ranks must be adjacent (Megatron's default order)")
        unknown: list[str] = []
        self.entries = [entry for model in models for entry in self._entries(model, unknown)]
        if unknown:
            raise ModelError(
                f"model_type {family.model_type!r} has no HF tensor for these parameters: {', '.join(unknown)}. "
                "Was the model built with options that add them?"
            )

    @property
    def device(self) -> torch.device:
        return self.entries[0].parameter.device

    def _entries(self, model: nn.Module, unknown: list[str]) -> Iterator[Entry]:
        layers = [layer.layer_number - 1 for layer in model.decoder.layers]  # Megatron counts from 1
        num_local_experts = (model.config.num_moe_experts or 0) // self.expert.size
        parameters = dict(model.named_parameters())
        for name, parameter in (parameters | dict(model.named_buffers())).items():
            names = global_names(local_spec_name(name), layers, num_local_experts, self.expert.size)
            mappings = tuple(self.family.tensors[n] for n in names if n in self.family.tensors)
            if len(mappings) == len(names):
                mine = mappings[self.expert.rank if len(mappings) > 1 else 0]
                cut, holders = (self.expert_tensor, self.expert_all) if mine.expert else (self.tensor, self.tensor)
                alone = holders.size == 1 or (mine.is_whole(tuple(parameter.shape)) and not mine.expert)
                # Megatron marks the second copy of a tied embedding, on a stage other than the first, as shared.
                is_copy = getattr(parameter, "shared", False)
                yield Entry(parameter, mappings, mine, cut, None if alone else holders, is_copy)
            elif name in parameters:
                unknown.append(name)


def _unwrapped(chunk: nn.Module) -> nn.Module:
    """The GPTModel inside DistributedDataParallel and Float16Module."""
    while not hasattr(chunk, "decoder"):
        chunk = chunk.module
    return chunk
