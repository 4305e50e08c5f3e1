"""What Megatron is told about published models, from their config.json alone, and what of it is refused."""

from __future__ import annotations

import logging

import pytest

from slime.models import ModelError, family_of
from tests.models.published import LLAMA_3_1_8B, QWEN2_5_7B

FIELDS = {  # of Megatron's TransformerConfig
    "Llama-3.1-8B": (LLAMA_3_1_8B, {
        "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
        "num_query_groups": 8, "kv_channels": 128, "layernorm_epsilon": 1e-5, "qk_layernorm": False,
        "add_qkv_bias": False, "add_bias_linear": False,
    }),
    "Qwen2.5-7B": (QWEN2_5_7B, {
        "num_layers": 28, "hidden_size": 3584, "ffn_hidden_size": 18944, "num_attention_heads": 28,
        "num_query_groups": 4, "kv_channels": 128, "layernorm_epsilon": 1e-6, "qk_layernorm": False,
        "add_qkv_bias": True, "add_bias_linear": False,
    }),
}  # fmt: skip
ARGUMENTS = {  # of GPTModel, with 8 tensor-parallel ranks
    "Llama-3.1-8B": (LLAMA_3_1_8B, {
        "vocab_size": 128256, "max_sequence_length": 131072, "share_embeddings_and_output_weights": False,
        "position_embedding_type": "rope", "rotary_base": 500000.0, "rope_scaling": True, "rope_scaling_factor": 8.0,
    }),
    "Qwen2.5-7B": (QWEN2_5_7B, {
        "vocab_size": 152064, "max_sequence_length": 32768, "share_embeddings_and_output_weights": False,
        "position_embedding_type": "rope", "rotary_base": 1000000.0,
    }),
}  # fmt: skip
REFUSED = [
    (LLAMA_3_1_8B, {"mlp_bias": True}, "mlp_bias"),
    (LLAMA_3_1_8B, {"attention_bias": True}, "attention_bias"),
    (LLAMA_3_1_8B, {"rope_scaling": {"rope_type": "llama3"}}, "lacks `factor`.*low_freq_factor None.*Megatron's is 1"),
    (LLAMA_3_1_8B, {"rope_scaling": {"rope_type": "dynamic"}}, r"'dynamic' is not supported \(only default, llama3\)"),
    (QWEN2_5_7B, {"use_sliding_window": True}, "sliding-window"),
    (QWEN2_5_7B, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope scaling of type 'yarn'"),
]


@pytest.mark.parametrize("model", FIELDS)
def test_transformer_fields(model):
    config, expected = FIELDS[model]
    fields = family_of(config).transformer_fields()
    assert {name: fields.get(name) for name in expected} == expected


@pytest.mark.parametrize("model", ARGUMENTS)
def test_arguments_of_the_model(model):
    config, expected = ARGUMENTS[model]
    assert family_of(config).gpt_arguments(8) == expected


@pytest.mark.parametrize("model", FIELDS)
def test_every_key_is_known(model, caplog):
    with caplog.at_level(logging.WARNING):
        family_of(FIELDS[model][0])
    assert not caplog.records


@pytest.mark.parametrize(("config", "keys", "complaint"), REFUSED)
def test_what_would_be_ignored_is_refused(config, keys, complaint):
    with pytest.raises(ModelError, match=complaint):
        family_of(config | keys)
