"""From config.json alone to Megatron's fields, and what is refused."""

from __future__ import annotations

import json
import logging

import pytest
import torch
import torch.nn.functional as F

from slime.config import load
from slime.models import ModelError, family_of, read_hf_config
from slime.models.registry import untrainable

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
    "intermediate_size": 9728, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling":
    None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_4B | {
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "router_aux_loss_coef": 0.001, "tie_word_embeddings":
    False,
}  # fmt: skip


def test_dense_fields():
    assert family_of(QWEN3_4B).transformer_fields() == {
        "num_layers": 36, "hidden_size": 2560, "ffn_hidden_size": 9728, "num_attention_heads": 32, "num_query_groups":
        8, "kv_channels": 128, "normalization": "RMSNorm", "layernorm_epsilon": 1e-6, "qk_layernorm": True,
        "add_bias_linear": False, "add_qkv_bias": False, "gated_linear_unit": True, "activation_func": F.silu,
        "hidden_dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip


def test_moe_fields():
    fields = family_of(QWEN3_30B_A3B).transformer_fields()
    moe = {name: value for name, value in fields.items() if "moe" in name}
    assert moe == {
        "num_moe_experts": 128, "moe_layer_freq": [1] * 48, "moe_ffn_hidden_size": 768, "moe_router_topk": 8,
        "moe_router_pre_softmax": False, "moe_router_score_function": "softmax", "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0,
    }  # fmt: skip


def test_moe_layers_follow_the_sparse_step_and_the_dense_exceptions():
    config = QWEN3_30B_A3B | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    assert family_of(config).transformer_fields()["moe_layer_freq"] == [0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("vocab_size", "tp", "padded"), [(151936, 1, 151936), (151936, 8, 151936), (91, 2, 92), (91, 4, 92), (1, 4, 4)]
)
def test_vocabulary_is_padded_to_the_tensor_parallel_size(vocab_size, tp, padded):
    assert family_of(QWEN3_4B | {"vocab_size": vocab_size}).gpt_arguments(tp) == {
        "vocab_size": padded, "max_sequence_length": 40960, "share_embeddings_and_output_weights": True,
        "position_embedding_type": "rope", "rotary_base": 1000000,
    }  # fmt: skip


def test_rotary_base_in_the_form_of_transformers_5():
    config = {key: value for key, value in QWEN3_4B.items() if not key.startswith("rope")}
    family = family_of(config | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}})
    assert family.gpt_arguments(1)["rotary_base"] == 5e6


@pytest.mark.parametrize(
    ("keys", "dtype"), [({"dtype": "float32", "torch_dtype": None}, torch.float32), ({}, torch.bfloat16)]
)
def test_dtype(keys, dtype):
    assert family_of(QWEN3_4B | keys).dtype == dtype


@pytest.mark.parametrize("model_type", ["gpt_neox", None])
def test_unknown_model_type_names_the_known_ones(model_type):
    with pytest.raises(ModelError, match=rf"model_type {model_type!r} is not one of those we have: .*qwen3, qwen3_moe"):
        family_of(QWEN3_4B | {"model_type": model_type})


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope scaling of type 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}}, "rope scaling of type 'linear'"),
        ({"rope_theta": None}, "lacks `rope_theta`"),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, "sliding-window attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn'"),
        ({"head_dim": None}, "lacks `head_dim`"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ],
)
@pytest.mark.parametrize("config", [QWEN3_4B, QWEN3_30B_A3B], ids=["dense", "moe"])
def test_what_would_be_ignored_is_refused(config, keys, complaint):
    with pytest.raises(ModelError, match=complaint):
        family_of(config | keys)


def test_all_complaints_come_at_once():
    with pytest.raises(ModelError, match=r"attention_bias.*hidden_act"):
        family_of(QWEN3_4B | {"attention_bias": True, "hidden_act": "gelu"})


def test_experts_without_a_number_are_refused():
    with pytest.raises(ModelError, match="lacks `num_experts`"):
        family_of(QWEN3_30B_A3B | {"num_experts": None})


def test_the_score_of_a_single_expert_is_not_normalised():
    """It would be 1 whatever the router says; and Megatron has no such router."""
    single = QWEN3_30B_A3B | {"num_experts_per_tok": 1}
    with pytest.raises(ModelError, match="num_experts_per_tok is 1 with norm_topk_prob"):
        family_of(single)
    assert family_of(single | {"norm_topk_prob": False}).transformer_fields()["moe_router_pre_softmax"]


@pytest.mark.parametrize("config", [QWEN3_4B, QWEN3_30B_A3B], ids=["dense", "moe"])
def test_keys_that_nobody_reads_are_said(config, caplog):
    with caplog.at_level(logging.WARNING):
        family_of(config)
        assert not caplog.records
        family_of(config | {"num_nextn_predict_layers": 1, "of_no_effect": 0})
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["num_nextn_predict_layers"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "does not exist"),
        ("{", "cannot be read"),
        ("[" * 5000, "cannot be read: maximum recursion depth exceeded"),
        ("[1]", "holds a JSON list"),
    ],
)
def test_bad_config_files(tmp_path, text, complaint):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=rf"config\.json {complaint}"):
        read_hf_config(tmp_path)


def test_config_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_4B))
    assert read_hf_config(tmp_path) == QWEN3_4B


@pytest.mark.parametrize(
    "keys",
    [
        {"max_window_layers": 36},
        {"max_window_layers": 0, "layer_types": ["full_attention"] * 36},
    ],
)
def test_a_window_that_no_layer_has_is_none(keys):
    family_of(QWEN3_4B | {"use_sliding_window": True, "sliding_window": 4096} | keys)


def test_a_check_refuses_what_training_would(tmp_path):
    def said(*options: str) -> list[tuple[str, str]]:
        return untrainable(load(["--hf-checkpoint", str(tmp_path), "--rollout-batch-size", "4", *options]))

    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_4B))
    assert said() == []
    file.write_text(json.dumps(QWEN3_4B | {"hidden_act": "gelu", "rms_norm_eps": 1e-6}))
    ((option, what),) = said()
    assert option == "--hf-checkpoint" and "hidden_act is 'gelu', but only 'silu' is supported" in what
    assert said("--debug-rollout-only") == []
