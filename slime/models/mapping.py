"""How one Megatron parameter is made of HF tensors, and cut over tensor-parallel ranks.

A mapping is a fact about names and shapes, bound to no process and no memory. It answers three questions:
`shapes` (what the HF tensors look like), `take` (this rank's part, reading nothing else) and `rebuild` (the HF tensors
again). Invariant: for any number of parts, rebuild([take(part) for part in parts]) gives the HF tensors back, bit for
bit.

`part` is the rank in the group that cuts the parameter: tensor parallel, or expert tensor parallel where `expert` is
true.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
Fetch = Callable[[str, tuple[slice, ...]], "Tensor"]
"""(HF name, one slice a leading dimension) -> that part of the tensor, and no more of it, in memory."""


@dataclass(frozen=True)
class Mapping(ABC):
    """`expert`: part of a routed expert, so on one expert-parallel rank and cut over expert tensor parallelism."""

    expert: bool = field(default=False, kw_only=True)

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The HF tensors, in the order of `shapes` and `rebuild`."""

    @abstractmethod
    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        """Shapes of the whole HF tensors, given the shape of one of `parts` local parameters."""

    @abstractmethod
    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        """The local parameter of rank `part`, of shape `local`."""

    def is_whole(self, local: Shape) -> bool:
        """Whether a local parameter of that shape is the same on all ranks of the group that would cut it."""
        return False

    @abstractmethod
    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """The HF tensors, contiguous, from the parameters of all ranks; of one rank, views where the layout allows."""


@dataclass(frozen=True)
class Replicated(Mapping):
    """The same tensor on every rank: norms, routers, and whatever Megatron does not cut."""

    hf: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.hf,)

    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        return [local]

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        return fetch(self.hf, ())

    def is_whole(self, local: Shape) -> bool:
        return True

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [shards[0]]


@dataclass(frozen=True)
class Column(Mapping):
    """Cut along the output dimension (rows of the weight, or its bias)."""

    hf: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.hf,)

    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        return [(local[0] * parts, *local[1:])]

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        return fetch(self.hf, (_part(local[0], part),))

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [_joined(shards, dim=0)]


@dataclass(frozen=True)
class Row(Mapping):
    """Cut along the input dimension (columns of the weight)."""

    hf: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.hf,)

    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        return [(local[0], local[1] * parts)]

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        return fetch(self.hf, (slice(None), _part(local[1], part)))

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [_joined(shards, dim=1)]


@dataclass(frozen=True)
class Vocab(Mapping):
    """One row a vocabulary entry: HF has `size`, Megatron pads to a multiple of the parts (with zeros, here)."""

    hf: str
    size: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.hf,)

    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        return [(self.size, *local[1:])]

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        start = min(part * local[0], self.size)
        stop = min(start + local[0], self.size)
        rows = fetch(self.hf, (slice(start, stop),))
        return _cat([rows, rows.new_zeros(local[0] - len(rows), *local[1:])]) if len(rows) < local[0] else rows

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [_joined(shards, dim=0)[: self.size]]


@dataclass(frozen=True)
class GateUp(Mapping):
    """A gated MLP's first layer: every rank stacks its part of the gate on its part of the up projection."""

    gate: str
    up: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.gate, self.up)

    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        return [(local[0] // 2 * parts, *local[1:])] * 2

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        rows = _part(local[0] // 2, part)
        return _cat([fetch(self.gate, (rows,)), fetch(self.up, (rows,))])

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        gates, ups = zip(*(shard.chunk(2) for shard in shards), strict=True)
        return [_joined(gates, dim=0), _joined(ups, dim=0)]


@dataclass(frozen=True)
class FusedGateUp(Column):
    """GateUp of a checkpoint that has one matrix for both, the gate above the up projection."""

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        rows = local[0] // 2
        return _cat([fetch(self.hf, (_part(rows, part),)), fetch(self.hf, (_part(rows, parts + part),))])

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        gates, ups = zip(*(shard.chunk(2) for shard in shards), strict=True)
        return [_joined((*gates, *ups), dim=0) if len(shards) > 1 else shards[0]]


@dataclass(frozen=True)
class Latent(Column):
    """An output dimension of `rows` in all, which transformer-engine's layers hold whole on every rank, and Megatron's
    local ones cut.
    """

    rows: int

    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        return [(self.rows, *local[1:])]

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        return fetch(self.hf, ()) if self.is_whole(local) else super().take(fetch, local, part, parts)

    def is_whole(self, local: Shape) -> bool:
        return local[0] == self.rows

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [shards[0]] if self.is_whole(tuple(shards[0].shape)) else super().rebuild(shards)


@dataclass(frozen=True)
class QKV(Mapping):
    """Attention's fused projection (weight or bias): for each query group its query heads, then its key head, then its
    value head.

    The fused rows are cut evenly over the ranks, so with fewer groups than ranks a cut may fall inside a group.
    """

    q: str
    k: str
    v: str
    num_heads: int
    num_groups: int
    head_dim: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.q, self.k, self.v)

    def shapes(self, local: Shape, parts: int) -> list[Shape]:
        q, kv = self.num_heads * self.head_dim, self.num_groups * self.head_dim
        return [(q, *local[1:]), (kv, *local[1:]), (kv, *local[1:])]

    def take(self, fetch: Fetch, local: Shape, part: int, parts: int) -> Tensor:
        mine = range(part * local[0], (part + 1) * local[0])
        pieces, start = [], 0
        q_rows = self.num_heads // self.num_groups * self.head_dim
        for group in range(self.num_groups):
            for name, rows in ((self.q, q_rows), (self.k, self.head_dim), (self.v, self.head_dim)):
                first, last = max(mine.start, start), min(mine.stop, start + rows)
                if first < last:
                    shift = group * rows - start  # from rows of the fused tensor to rows of this HF tensor
                    pieces.append(fetch(name, (slice(first + shift, last + shift),)))
                start += rows
        return _cat(pieces)

    def rebuild(self, shards: Sequence[Tensor]) -> list[Tensor]:
        fused = _joined(shards, dim=0)
        heads = self.num_heads // self.num_groups
        by_group = fused.view(self.num_groups, heads + 2, self.head_dim, *fused.shape[1:])
        return [t.reshape(-1, *fused.shape[1:]).contiguous() for t in by_group.split([heads, 1, 1], dim=1)]


def _part(rows: int, part: int) -> slice:
    return slice(part * rows, (part + 1) * rows)


def _joined(shards: Sequence[Tensor], dim: int) -> Tensor:
    return shards[0] if len(shards) == 1 else _cat(shards, dim)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    import torch  # which takes seconds, and no mapping is asked for tensors before a rank has them

    return torch.cat(list(tensors), dim=dim)
