"""What Megatron is told about published models, from their config.json alone, and what of it is refused."""

from __future__ import annotations

import logging

import pytest

from slime.models import ModelError, family_of
from tests.models.published import (
    DEEPSEEK_V3,
    GLM_4_5_AIR,
    GLM_4_9B,
    KIMI_K2,
    LLAMA_3_1_8B,
    MOONLIGHT_16B_A3B,
    QWEN2_5_7B,
)

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
    "GLM-4-9B-0414": (GLM_4_9B, {
        "num_layers": 40, "hidden_size": 4096, "ffn_hidden_size": 13696, "num_attention_heads": 32,
        "num_query_groups": 2, "kv_channels": 128, "layernorm_epsilon": 1e-5, "qk_layernorm": False,
        "add_qkv_bias": True, "rotary_interleaved": True,
    }),
    "GLM-4.5-Air": (GLM_4_5_AIR, {
        "num_layers": 46, "hidden_size": 4096, "ffn_hidden_size": 10944, "num_attention_heads": 96,
        "num_query_groups": 8, "kv_channels": 128, "qk_layernorm": False, "add_qkv_bias": True,
        "num_moe_experts": 128, "moe_layer_freq": [0] + [1] * 45, "moe_ffn_hidden_size": 1408,
        "moe_shared_expert_intermediate_size": 1408, "moe_router_topk": 8, "moe_router_score_function": "sigmoid",
        "moe_router_topk_scaling_factor": 1.0, "moe_router_num_groups": None, "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.0,
    }),
    "DeepSeek-V3": (DEEPSEEK_V3, {
        "num_layers": 61, "hidden_size": 7168, "ffn_hidden_size": 18432, "num_attention_heads": 128,
        "multi_latent_attention": True, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "rope_type": "yarn", "rotary_base": 10000,
        "rotary_scaling_factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0, "num_moe_experts": 256, "moe_layer_freq": [0] * 3 + [1] * 58,
        "moe_ffn_hidden_size": 2048, "moe_shared_expert_intermediate_size": 2048, "moe_router_topk": 8,
        "moe_router_num_groups": 8, "moe_router_group_topk": 4, "moe_router_topk_scaling_factor": 2.5,
    }),
    "Kimi-K2": (KIMI_K2, {
        "num_layers": 61, "hidden_size": 7168, "num_attention_heads": 64, "q_lora_rank": 1536, "rotary_base": 50000.0,
        "rotary_scaling_factor": 32.0, "beta_fast": 1.0, "num_moe_experts": 384, "moe_layer_freq": [0] + [1] * 60,
        "moe_router_num_groups": None, "moe_router_group_topk": None, "moe_router_topk_scaling_factor": 2.827,
    }),
    "Moonlight-16B-A3B": (MOONLIGHT_16B_A3B, {
        "num_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
        "rope_type": "rope", "rotary_base": 50000.0, "rotary_scaling_factor": 1.0, "num_moe_experts": 64,
        "moe_layer_freq": [0] + [1] * 26, "moe_shared_expert_intermediate_size": 2816, "moe_router_topk": 6,
        "layernorm_epsilon": 1e-5,
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
    "GLM-4.5-Air": (GLM_4_5_AIR, {
        "vocab_size": 151552, "max_sequence_length": 131072, "share_embeddings_and_output_weights": False,
        "position_embedding_type": "rope", "rotary_base": 1000000, "rotary_percent": 0.5,
    }),
    "DeepSeek-V3": (DEEPSEEK_V3, {
        "vocab_size": 129280, "max_sequence_length": 163840, "share_embeddings_and_output_weights": False,
        "position_embedding_type": "rope", "rotary_base": 10000,
    }),
}  # fmt: skip
REFUSED = [
    (LLAMA_3_1_8B, {"mlp_bias": True}, "mlp_bias"),
    (LLAMA_3_1_8B, {"attention_bias": True}, "attention_bias"),
    (LLAMA_3_1_8B, {"rope_scaling": {"rope_type": "llama3"}}, "lacks `factor`.*low_freq_factor None.*Megatron's is 1"),
    (LLAMA_3_1_8B, {"rope_scaling": {"rope_type": "dynamic"}}, r"'dynamic' is not supported \(only default, llama3\)"),
    (GLM_4_9B, {"partial_rotary_factor": None}, "lacks `partial_rotary_factor`"),
    (LLAMA_3_1_8B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, but this family rotates whole heads"),
    (QWEN2_5_7B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    (MOONLIGHT_16B_A3B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    (GLM_4_5_AIR, {"norm_topk_prob": False}, "not normalised"),
    (GLM_4_5_AIR, {"n_group": 8, "topk_group": 2}, "rank a group of experts by its 4 best ones instead of 2"),
    (GLM_4_5_AIR, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    (DEEPSEEK_V3, {"topk_group": None}, "lacks `topk_group`, of n_group 8"),
    (DEEPSEEK_V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    (DEEPSEEK_V3, {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    (DEEPSEEK_V3, {"rope_interleave": False}, "rope_interleave"),
    (DEEPSEEK_V3, {"rope_scaling": {"type": "yarn", "attention_factor": 2.0}}, "lacks `factor`.*with attention_factor"),
    (DEEPSEEK_V3, {"quantization_config": {"quant_method": "awq"}}, "not in fp8 with a scale for each block"),
    (DEEPSEEK_V3, {"kv_lora_rank": None}, "lacks `kv_lora_rank`"),
    (DEEPSEEK_V3, {"v_head_dim": 193}, r"v_head_dim 193 exceeds 192 \(qk_nope_head_dim and qk_rope_head_dim\)"),
    (QWEN2_5_7B, {"use_sliding_window": True, "max_window_layers": 27}, "sliding-window"),
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


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (LLAMA_3_1_8B, {"partial_rotary_factor": 1.0}),
        (QWEN2_5_7B, {"rope_parameters": {"partial_rotary_factor": None}}),
        (DEEPSEEK_V3, {"partial_rotary_factor": 1.0, "v_head_dim": 192}),
    ],
)
def test_what_says_no_more_than_the_family_does_is_none_of_that(config, keys):
    assert family_of(config | keys).gpt_arguments(8) == family_of(config).gpt_arguments(8)


def test_share_of_a_head_that_is_rotated_in_the_form_of_transformers_5():
    config = {key: value for key, value in GLM_4_9B.items() if key not in ("rope_theta", "partial_rotary_factor")}
    family = family_of(config | {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}})
    assert family.gpt_arguments(1)["rotary_percent"] == 0.5
