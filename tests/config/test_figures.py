"""The keys of config.json: of their kind, and not contradicting each other."""

from __future__ import annotations

import json
import math

import pytest

from slime.config import architecture, figures
from slime.config.figures import Misstated
from tests.config.checkpoints import QWEN3_30B_A3B, TINY
from tests.models import published


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 2.5, "num_hidden_layers is 2.5, not a whole number from 1 to 10,000"),
        ("num_hidden_layers", "two", 'num_hidden_layers is "two", not a whole number from'),
        ("num_hidden_layers", 10**30, "not a whole number from 1 to 10,000"),
        ("num_attention_heads", "4", 'num_attention_heads is "4", not'),
        ("hidden_size", True, "hidden_size is true, not a whole number"),
        ("head_dim", -16, "head_dim is -16, not"),
        ("vocab_size", 0, "vocab_size is 0, not"),
        ("rms_norm_eps", math.nan, "rms_norm_eps is NaN, not a number above 0"),
        ("rope_parameters", {"rope_theta": "abc"}, 'rope_parameters.rope_theta is "abc", not a number above 0'),
        ("rope_parameters", [], "rope_parameters is [], not an object"),
        ("model_type", ["qwen3"], 'model_type is ["qwen3"], not a text'),
        ("tie_word_embeddings", "false", 'tie_word_embeddings is "false", not true or false'),
        ("mlp_only_layers", [1.0], "mlp_only_layers is [1.0], not a list of layers"),
        ("architectures", "Qwen3ForCausalLM", "not a list of texts"),
        ("eos_token_id", "2", 'eos_token_id is "2", not the id of a token, or a list of them'),
        ("eos_token_id", [-1], "eos_token_id is [-1], not"),
        ("text_config", [1], "text_config is [1], not an object"),
    ],
)
def test_a_value_of_another_kind_is_said_with_its_key(tmp_path, key, value, message):
    (tmp_path / "config.json").write_text(json.dumps(TINY | {key: value}))
    with pytest.raises(Misstated) as caught:
        architecture.read(tmp_path)
    assert message in str(caught.value)


def test_all_of_them_are_said_at_once():
    with pytest.raises(Misstated, match=r"^num_hidden_layers is .*; hidden_size is .*"):
        figures.of(TINY | {"hidden_size": "64", "num_hidden_layers": 0})


def test_null_states_nothing():
    assert figures.of(TINY | {"head_dim": None, "q_lora_rank": None}) == figures.of(
        {key: value for key, value in TINY.items() if key != "head_dim"}
    )


@pytest.mark.parametrize(
    ("config", "figure", "message"),
    [
        (TINY, {"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        (TINY, {"head_dim": None, "hidden_size": 65}, "num_attention_heads 4 does not divide hidden_size 65"),
        (TINY, {"eos_token_id": 9999}, "eos_token_id 9999 is beyond vocab_size"),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 129}, "num_experts_per_tok 129 exceeds the 128 experts"),
        (QWEN3_30B_A3B, {"mlp_only_layers": [48]}, "mlp_only_layers names layer 48 of 48"),
        (published.DEEPSEEK_V3, {"n_group": 3}, "n_group 3 does not divide the 256 experts"),
        (published.DEEPSEEK_V3, {"topk_group": 9}, "topk_group 9 exceeds n_group 8"),
        (published.DEEPSEEK_V3, {"num_experts_per_tok": 129}, "exceeds what topk_group 4 of n_group 8 hold"),
        (published.DEEPSEEK_V3, {"first_k_dense_replace": 62}, "first_k_dense_replace 62 exceeds num_hidden_layers 61"),
        (published.DEEPSEEK_V3, {"moe_layer_freq": [0, 1]}, "moe_layer_freq has 2 entries for num_hidden_layers 61"),
    ],
)
def test_figures_that_no_model_has_together_are_said(config, figure, message):
    figures.of(config)
    with pytest.raises(Misstated, match=message):
        figures.of(config | figure)
