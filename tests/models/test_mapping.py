"""Mappings: taken apart over any number of ranks and put together again, and the layouts themselves by hand."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slime.models.mapping import QKV, Column, FusedGateUp, GateUp, Latent, Mapping, Replicated, Row, Vocab

rank_counts = st.sampled_from([1, 2, 4])
width = st.integers(1, 3)


class Source:
    """HF tensors of distinct numbers, and how many of these were fetched."""

    def __init__(self, **shapes: tuple[int, ...]):
        total = 0
        self.tensors: dict[str, Tensor] = {}
        self.fetched = 0
        for name, shape in shapes.items():
            count = torch.Size(shape).numel()
            self.tensors[name] = torch.arange(total, total + count).view(shape)
            total += count

    def fetch(self, name: str, index: tuple[slice, ...]) -> Tensor:
        part = self.tensors[name][index]
        self.fetched += part.numel()
        return part


def check(mapping: Mapping, local: tuple[int, ...], parts: int, source: Source) -> list[Tensor]:
    """Everything that holds for any mapping; returns the shards."""
    assert mapping.shapes(local, parts) == [tuple(source.tensors[name].shape) for name in mapping.names]
    shards = []
    for part in range(parts):
        source.fetched = 0
        shards.append(mapping.take(source.fetch, local, part, parts))
        assert shards[-1].shape == local
        assert source.fetched <= shards[-1].numel()
    rebuilt = mapping.rebuild(shards)
    for name, tensor in zip(mapping.names, rebuilt, strict=True):
        assert torch.equal(tensor, source.tensors[name])
        assert tensor.is_contiguous()
    return shards


@given(rank_counts, st.integers(1, 4), width)
def test_replicated(parts, rows, columns):
    shards = check(Replicated("w"), (rows, columns), parts, Source(w=(rows, columns)))
    assert all(torch.equal(shard, shards[0]) for shard in shards)


@given(rank_counts, st.integers(1, 4), width)
def test_column(parts, rows, columns):
    source = Source(w=(rows * parts, columns))
    shards = check(Column("w"), (rows, columns), parts, source)
    assert torch.equal(shards[-1], source.tensors["w"][-rows:])


@given(rank_counts, st.integers(1, 4))
def test_column_bias(parts, rows):
    check(Column("b"), (rows,), parts, Source(b=(rows * parts,)))


@given(rank_counts, st.integers(1, 4), width)
def test_row(parts, rows, columns):
    source = Source(w=(rows, columns * parts))
    shards = check(Row("w"), (rows, columns), parts, source)
    assert torch.equal(shards[-1], source.tensors["w"][:, -columns:])


@given(rank_counts, st.integers(1, 30), st.integers(0, 3), width)
def test_vocab(parts, size, extra, columns):
    local = -(-size // parts) + extra  # a model may be padded further than it has to
    source = Source(w=(size, columns))
    shards = check(Vocab("w", size), (local, columns), parts, source)
    padding = torch.cat(shards)[size:]
    assert not padding.any()


@given(rank_counts, st.integers(1, 4), width)
def test_gate_up(parts, rows, columns):
    source = Source(gate=(rows * parts, columns), up=(rows * parts, columns))
    shards = check(GateUp("gate", "up"), (2 * rows, columns), parts, source)
    for part, shard in enumerate(shards):
        rows_of_part = slice(part * rows, (part + 1) * rows)
        assert torch.equal(shard[:rows], source.tensors["gate"][rows_of_part])
        assert torch.equal(shard[rows:], source.tensors["up"][rows_of_part])


@given(rank_counts, st.integers(1, 4), width)
def test_fused_gate_up(parts, rows, columns):
    source = Source(w=(2 * rows * parts, columns))
    shards = check(FusedGateUp("w"), (2 * rows, columns), parts, source)
    gate, up = source.tensors["w"].chunk(2)
    for part, shard in enumerate(shards):
        rows_of_part = slice(part * rows, (part + 1) * rows)
        assert torch.equal(shard[:rows], gate[rows_of_part])
        assert torch.equal(shard[rows:], up[rows_of_part])


@given(rank_counts, st.integers(1, 4), width, st.booleans())
def test_latent_is_whole_or_cut(parts, rows, columns, whole):
    size = rows * parts
    source = Source(w=(size, columns))
    shards = check(Latent("w", size), (size if whole else rows, columns), parts, source)
    assert torch.equal(shards[-1], source.tensors["w"] if whole else source.tensors["w"][-rows:])


@st.composite
def attention(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """parts, heads, groups, head_dim as Megatron allows them: parts divide the groups, or groups the parts."""
    parts, groups, per_group = draw(rank_counts), draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 4))
    head_dim = draw(st.integers(1, 3)) * (parts // groups if groups < parts else 1)
    return parts, groups * per_group, groups, head_dim


@given(attention(), st.one_of(st.just(()), st.tuples(width)))
def test_qkv(attention, columns):
    parts, heads, groups, head_dim = attention
    q, kv = heads * head_dim, groups * head_dim
    source = Source(q=(q, *columns), k=(kv, *columns), v=(kv, *columns))
    local = ((q + 2 * kv) // parts, *columns)
    shards = check(QKV("q", "k", "v", heads, groups, head_dim), local, parts, source)
    # Megatron's attention views the fused projection as [groups, query heads of the group + key + value, head_dim].
    fused = torch.cat(shards).view(groups, heads // groups + 2, head_dim, *columns)
    assert torch.equal(fused[:, :-2].reshape(q, *columns), source.tensors["q"])
    assert torch.equal(fused[:, -2].reshape(kv, *columns), source.tensors["k"])
    assert torch.equal(fused[:, -1].reshape(kv, *columns), source.tensors["v"])


def test_qkv_by_hand():
    """4 query heads in 2 groups of head_dim 1, on 2 ranks."""
    values = {"q": torch.tensor([10, 11, 12, 13]), "k": torch.tensor([20, 21]), "v": torch.tensor([30, 31])}
    mapping = QKV("q", "k", "v", num_heads=4, num_groups=2, head_dim=1)
    shards = [mapping.take(lambda name, index: values[name][index], (4,), part, 2) for part in range(2)]
    assert [shard.tolist() for shard in shards] == [[10, 11, 20, 30], [12, 13, 21, 31]]


@given(
    st.sampled_from(
        [
            *(Replicated("w"), Column("w"), Row("w"), Vocab("w", 3), GateUp("gate", "up"), FusedGateUp("w")),
            *(Latent("w", 4), QKV("q", "k", "v", 2, 1, 1)),
        ]
    )
)
def test_one_rank_copies_nothing(mapping):
    shard = torch.zeros(4, 2)
    for tensor in mapping.rebuild([shard]):
        assert tensor.untyped_storage().data_ptr() == shard.untyped_storage().data_ptr()
