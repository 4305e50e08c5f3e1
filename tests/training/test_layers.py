"""Our layers against Megatron's own, or torch's, one sequence at a time."""

from __future__ import annotations

import pytest

from tests.distributed import run_ranks

LENGTHS = [5, 1, 12, 3]
ROPE = {
    "whole heads": {"dim": 8},
    "part of the head": {"dim": 4},
    "interleaved": {"dim": 8, "rotary_interleaved": True},
    "scaled": {"dim": 8, "mscale": 1.5},
}
REFUSED = {
    "LayerNorm": {"normalization": "LayerNorm"},
    "window attention": {"normalization": "RMSNorm", "window_size": (4, 0)},
}


def differences():
    """Largest difference of each comparison, and what was refused with which words."""
    import slime.training  # noqa: F401, I001

    # Only now Megatron, which needs torch patched.
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_thd
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.transformer_config import TransformerConfig

    from slime.training.layers import SDPAttention, block_spec, packed_rope

    torch.manual_seed(0)
    groups = ProcessGroupCollection(cp=dist.group.WORLD)
    cu_seqlens = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    query, key, value = (torch.randn(sum(LENGTHS), heads, 8) for heads in (4, 2, 2))
    found = {}
    for name, options in ROPE.items():
        options = dict(options)
        freqs = torch.randn(max(LENGTHS), 1, 1, options.pop("dim"))
        ours, theirs = (
            rotate(query, cu_seqlens, freqs, cp_group=dist.group.WORLD, **options)
            for rotate in (packed_rope, _apply_rotary_pos_emb_thd)
        )
        found[name] = (ours - theirs).abs().max().item()

    sizes = {
        "num_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "attention_dropout": 0.0,
    }
    attention = SDPAttention(TransformerConfig(**sizes), 1, None, "self", pg_collection=groups)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu_seqlens, max_seqlen_q=max(LENGTHS))
    ours = attention(query, key, value, None, packed_seq_params=packed)
    theirs = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts), is_causal=True, enable_gqa=True)
        for parts in zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True)
    ]
    found["attention"] = (ours - torch.cat([x.transpose(0, 1).flatten(1) for x in theirs])).abs().max().item()

    refusals = {"not packed": lambda: attention(query, key, value, None)}
    for name, options in REFUSED.items():
        config = TransformerConfig(**sizes, transformer_impl="local", **options)
        refusals[name] = lambda config=config: block_spec(config)
    for name, attempt in refusals.items():
        try:
            attempt()
        except ValueError as error:
            found[name] = str(error)
    return found


@pytest.fixture(scope="module")
def found():
    return run_ranks(differences, 1)[0]


@pytest.mark.parametrize("name", [*ROPE, "attention"])
def test_packed_equals_one_sequence_at_a_time(name, found):
    assert found[name] < 1e-6


@pytest.mark.parametrize("name", REFUSED)
def test_local_layers_refuse_what_they_cannot_express(name, found):
    assert f"can't build a model with {'normalization ' if name == 'LayerNorm' else ''}{name}" in found[name]


def test_attention_takes_packed_sequences_alone(found):
    assert "packed sequences only" in found["not packed"]
