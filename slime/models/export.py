"""Export: full HF tensors from the shards of all ranks, in buckets of bounded size.

Invariants: every rank yields the same number of buckets, and the same ones at each call. Each HF tensor is yielded
exactly once over the pipeline stages (and by every stage with across_pp). A bucket costs at most one collective for
each group and dtype in it, plus one broadcast over the pipeline with across_pp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from slime.models.shard import Axis, Entry, Shard

Bucket = list[tuple[str, Tensor]]
T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """What is known of an HF tensor before it is gathered."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Gather:
    """Entries that are gathered together, and the buckets of it: one, unless a single entry makes more than fits."""

    entries: list[Entry]
    buckets: list[list[Spec]]


def export_hf(shard: Shard, bucket_bytes: int, across_pp: bool = False) -> Iterator[Bucket]:
    """Yields buckets of (hf_name, full tensor) of at most `bucket_bytes`; a larger tensor has a bucket to itself.

    Collective over all ranks of the model: each must iterate to the end. Names are those of the checkpoint, vocabulary
    padding is removed, dtypes are the parameters'. With across_pp=False each pipeline stage yields its own tensors, the
    same on all ranks of the stage, and stages with less to give end with empty buckets; with True every rank yields
    every tensor, stage after stage.

    Nothing is copied that need not be: with one tensor-parallel rank all but the query, key and value projections are
    views of the live parameters, good until these change. Memory: a bucket twice while it is gathered; with expert
    parallelism a bucket counts as no smaller than one matrix of one expert from each expert-parallel rank.
    """
    plan = _plan(shard, bucket_bytes)
    specs = [bucket for gather in plan for bucket in gather.buckets]
    if not across_pp or shard.pipeline.size == 1:
        yield from _gathered(plan)
        yield from [[] for _ in range(_most(len(specs), shard) - len(specs))]
        return
    stages: list[Any] = [None] * shard.pipeline.size
    dist.all_gather_object(stages, specs, group=shard.pipeline.group)
    for stage, stage_specs in enumerate(stages):
        if stage == shard.pipeline.rank:
            for bucket in _gathered(plan):
                _send(bucket, shard)
                yield bucket
        else:
            for bucket_specs in stage_specs:
                yield _receive(bucket_specs, stage, shard)


def _plan(shard: Shard, bucket_bytes: int) -> list[Gather]:
    pieces = [(entry, _specs(entry)) for entry in shard.entries if not entry.is_copy]
    plan = []
    for together in _packed(pieces, lambda piece: sum(spec.nbytes for spec in piece[1]), bucket_bytes):
        specs = [spec for _, of_entry in together for spec in of_entry]
        plan.append(Gather([entry for entry, _ in together], _packed(specs, lambda spec: spec.nbytes, bucket_bytes)))
    return plan


def _specs(entry: Entry) -> list[Spec]:
    """The HF tensors of an entry, those of its counterparts on the other expert-parallel ranks included."""
    shapes = entry.mine.shapes(tuple(entry.parameter.shape), entry.cut.size)
    dtype = entry.parameter.dtype
    return [
        Spec(name, shape, dtype)
        for mapping in entry.mappings
        for name, shape in zip(mapping.names, shapes, strict=True)
    ]


def _packed(items: Iterable[T], nbytes: Callable[[T], int], limit: int) -> list[list[T]]:
    """Consecutive items, as many at a time as fit; one that is larger than the limit is alone."""
    packs: list[list[T]] = []
    room = -1
    for item in items:
        room -= nbytes(item)
        if room < 0:
            packs.append([])
            room = limit - nbytes(item)
        packs[-1].append(item)
    return packs


def _gathered(plan: list[Gather]) -> Iterator[Bucket]:
    for gather in plan:
        tensors = iter(_gather(gather.entries))
        for bucket in gather.buckets:
            yield [next(tensors) for _ in bucket]


def _gather(entries: list[Entry]) -> Bucket:
    """The HF tensors of these entries; one collective for each group of ranks and dtype among them."""
    parts = [[entry.tensor] for entry in entries]  # of each entry: those of all its holders
    together: dict[tuple[Axis, torch.dtype], list[int]] = {}
    for i, entry in enumerate(entries):
        if entry.holders:
            together.setdefault((entry.holders, entry.parameter.dtype), []).append(i)
    for (holders, _), members in together.items():
        flat = torch.cat([entries[i].tensor.reshape(-1) for i in members])
        of_ranks = flat.new_empty(holders.size, flat.numel())
        dist.all_gather_into_tensor(of_ranks.view(-1), flat, group=holders.group)
        columns = of_ranks.split([entries[i].parameter.numel() for i in members], dim=1)
        for i, rows in zip(members, columns, strict=True):
            parts[i] = [row.view(entries[i].parameter.shape) for row in rows]
    bucket: Bucket = []
    for entry, of_entry in zip(entries, parts, strict=True):
        for i, mapping in enumerate(entry.mappings):
            shards = of_entry[i * entry.cut.size : (i + 1) * entry.cut.size]
            bucket += zip(mapping.names, mapping.rebuild(shards), strict=True)
    return bucket


def _most(count: int, shard: Shard) -> int:
    """The largest `count` of the pipeline stages."""
    if shard.pipeline.size == 1:
        return count
    most = torch.tensor(count, device=shard.device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=shard.pipeline.group)
    return int(most)


def _dtypes(tensors: Iterable[Tensor | Spec]) -> list[torch.dtype]:
    """Those that occur, in order: what is broadcast together."""
    return list(dict.fromkeys(tensor.dtype for tensor in tensors))


def _send(bucket: Bucket, shard: Shard) -> None:
    for dtype in _dtypes(tensor for _, tensor in bucket):
        flat = torch.cat([tensor.reshape(-1) for _, tensor in bucket if tensor.dtype == dtype])
        dist.broadcast(flat, group=shard.pipeline.group, group_src=shard.pipeline.rank)


def _receive(specs: list[Spec], stage: int, shard: Shard) -> Bucket:
    received: dict[str, Tensor] = {}
    for dtype in _dtypes(specs):
        members = [spec for spec in specs if spec.dtype == dtype]
        sizes = [spec.numel for spec in members]
        flat = torch.empty(sum(sizes), dtype=dtype, device=shard.device)
        dist.broadcast(flat, group=shard.pipeline.group, group_src=stage)
        received |= {spec.name: piece.view(spec.shape) for spec, piece in zip(members, flat.split(sizes), strict=True)}
    return [(spec.name, received[spec.name]) for spec in specs]
