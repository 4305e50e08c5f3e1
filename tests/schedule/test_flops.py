"""Operations counted by hand, and against the matrices of a model that exists."""

import numpy as np

from slime.config import architecture
from slime.config.architecture import Architecture
from slime.schedule import forward_flops
from slime.tiny.checkpoint import write_checkpoint


def test_by_hand():
    # One layer: query and output 4 x 4, key and value 4 x 2; gate, up and down 4 x 8. Two heads of 2.
    model = Architecture(
        num_layers=1, hidden_size=4, num_attention_heads=2, num_query_groups=1, kv_channels=2, ffn_hidden_size=8,
        swiglu=True, vocab_size=10, layers=[False],
    )  # fmt: skip
    matrices = 2 * 16 + 2 * 8 + 3 * 32
    pairs = 1 + 2 + 3  # of three tokens with themselves and those before
    assert forward_flops(model, np.array([3]), np.array([2])).tolist() == [2 * (3 * matrices + pairs * 8 + 2 * 40)]


def test_a_mixture_counts_the_experts_that_a_token_uses(tmp_path):
    dense = architecture.read(write_checkpoint(tmp_path / "dense"))
    mixture = architecture.read(write_checkpoint(tmp_path / "moe", moe=True))
    # 2 of 8 experts of width 96 are as much as one layer of 192; the router is 8 x 64 in each of two layers.
    assert mixture.matrix_parameters - dense.matrix_parameters == 2 * 8 * 64


def test_long_samples_cost_more_than_their_tokens(tmp_path):
    model = architecture.read(write_checkpoint(tmp_path))
    one, ten = forward_flops(model, np.array([1000, 10_000]), np.array([0, 0]))
    assert ten > 10 * one


def test_lengths_beyond_32_bits_of_operations(tmp_path):
    model = architecture.read(write_checkpoint(tmp_path))
    (flops,) = forward_flops(model, np.array([1_000_000], np.int32), np.array([0], np.int32))
    assert flops > 2 * 2 * 64 * 5e11  # two layers, four heads of 16, 5e11 pairs
