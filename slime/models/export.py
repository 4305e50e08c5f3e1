"""Export: full HF tensors from the shards of all ranks, in buckets of bounded size.

Invariants: every rank yields the same number of buckets, and the same ones at each call. Each HF tensor is yielded exactly once over the
pipeline stages (and by every stage with across_pp). A bucket costs at most one collective for each group and dtype in it, plus one
broadcast over the pipeline with across_pp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.models.shard import Entry, Shard

Bucket = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class Spec:
    """What is known of an HF tensor before it is gathered."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Gather:
    """Entries that are gathered together, and the buckets that come of it: one, unless a single entry makes more than fits."""

    entries: list[Entry]
    buckets: list[list[Spec]]


def export_hf(shard: Shard, bucket_bytes: int, across_pp: bool = False) -> Iterator[Bucket]:
    """Yields buckets of (hf_name, full tensor) of at most `bucket_bytes`; a tensor larger than that has a bucket to itself.

    Collective over all ranks of the model: each must iterate to the end. Names are those of the checkpoint, vocabulary padding is
    removed, dtypes are the parameters'. With across_pp=False each pipeline stage yields its own tensors, the same on all ranks of
    the stage, and stages with less to give end with empty buckets; with True every rank yields every tensor, stage after stage.

    Nothing is copied that need not be: with one tensor-parallel rank all but the query, key and value projections are views of the
    live parameters, good until these change. Memory: a bucket twice while it is gathered; with expert parallelism a bucket counts
    as no smaller than one matrix of one expert from each expert-parallel rank.
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
    """As many consecutive entries at a time as fit into one bucket once they are gathered."""
    plan: list[Gather] = []
    entries: list[Entry] = []
    specs: list[Spec] = []
    for entry in shard.entries:
        if entry.is_copy:
            continue
        new = _specs(entry)
        if entries and _nbytes(specs) + _nbytes(new) > bucket_bytes:
            plan.append(Gather(entries, _split(specs, bucket_bytes)))
            entries, specs = [], []
        entries.append(entry)
        specs += new
    if entries:
        plan.append(Gather(entries, _split(specs, bucket_bytes)))
    return plan


def _specs(entry: Entry) -> list[Spec]:
    """The HF tensors of an entry, those of its counterparts on the other expert-parallel ranks included."""
    shapes = entry.mine.shapes(tuple(entry.tensor.shape), entry.cut.size)
    dtype = entry.tensor.dtype
    return [Spec(name, shape, dtype) for mapping in entry.mappings for name, shape in zip(mapping.names, shapes, strict=True)]


def _nbytes(specs: Iterable[Spec]) -> int:
    return sum(spec.nbytes for spec in specs)


def _split(specs: list[Spec], bucket_bytes: int) -> list[list[Spec]]:
    """Consecutive specs, each part as large as fits, and never empty."""
    buckets: list[list[Spec]] = [[]]
    for spec in specs:
        if buckets[-1] and _nbytes(buckets[-1]) + spec.nbytes > bucket_bytes:
            buckets.append([])
        buckets[-1].append(spec)
    return buckets


def _gathered(plan: list[Gather]) -> Iterator[Bucket]:
    for gather in plan:
        tensors = iter(_gather(gather.entries))
        for bucket in gather.buckets:
            yield [next(tensors) for _ in bucket]


def _gather(entries: list[Entry]) -> Bucket:
    """The HF tensors of these entries; one collective for each group of ranks and dtype among them."""
    parts = {id(entry): [entry.tensor] for entry in entries}
    together: dict[tuple[dist.ProcessGroup, torch.dtype], list[Entry]] = {}
    for entry in entries:
        if entry.holders:
            together.setdefault((entry.holders.group, entry.tensor.dtype), []).append(entry)
    for (group, _), members in together.items():
        flat = torch.cat([entry.tensor.reshape(-1) for entry in members])
        of_ranks = flat.new_empty(members[0].holders.size, flat.numel())
        dist.all_gather_into_tensor(of_ranks.view(-1), flat, group=group)
        for entry, columns in zip(members, of_ranks.split([entry.tensor.numel() for entry in members], dim=1), strict=True):
            parts[id(entry)] = [row.view(entry.tensor.shape) for row in columns]
    bucket: Bucket = []
    for entry in entries:
        for i, mapping in enumerate(entry.mappings):
            shards = parts[id(entry)][i * entry.cut.size : (i + 1) * entry.cut.size]
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
        sizes = [torch.Size(spec.shape).numel() for spec in members]
        flat = torch.empty(sum(sizes), dtype=dtype, device=shard.device)
        dist.broadcast(flat, group=shard.pipeline.group, group_src=stage)
        received |= {spec.name: piece.view(spec.shape) for spec, piece in zip(members, flat.split(sizes), strict=True)}
    return [(spec.name, received[spec.name]) for spec in specs]
