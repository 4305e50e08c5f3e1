"""Names: both layer specs and every rank's numbering come down to the names that families list."""

from __future__ import annotations

import pytest

from slime.models import family_of, multi_token_model
from slime.models.names import global_names, local_spec_name
from tests.models import published
from tests.models.test_config import QWEN3_4B, QWEN3_30B_A3B

DENSE_TE = [  # as transformer-engine's layers call the parameters of a decoder layer
    "self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight", "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight",
]  # fmt: skip
MOE_TE = [
    "self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight", "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight",
    "pre_mlp_layernorm.weight", "mlp.router.weight",
    *(f"mlp.experts.linear_fc{layer}.weight{expert}" for layer in (1, 2) for expert in range(128)),
]  # fmt: skip


QKV_BIAS_TE = [name for name in DENSE_TE if "q_layernorm" not in name and "k_layernorm" not in name] + [
    "self_attention.linear_qkv.bias"
]
POST_NORMS_TE = [
    *QKV_BIAS_TE, "self_attention.linear_proj.post_layernorm.weight", "mlp.linear_fc2.post_layernorm.weight",
]  # fmt: skip
SIGMOID_TE = [  # without what attention has
    "pre_mlp_layernorm.weight", "mlp.router.weight", "mlp.router.expert_bias", "mlp.shared_experts.linear_fc1.weight",
    "mlp.shared_experts.linear_fc2.weight",
]  # fmt: skip
LATENT_TE = [
    "input_layernorm.weight", "self_attention.linear_kv_down_proj.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight", "self_attention.linear_kv_up_proj.weight",
    "self_attention.linear_proj.weight",
]  # fmt: skip
QUERY_LATENT_TE = [
    "self_attention.linear_q_down_proj.weight", "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.linear_q_up_proj.weight",
]  # fmt: skip


def experts(count: int) -> list[str]:
    return [f"mlp.experts.linear_fc{layer}.weight{expert}" for layer in (1, 2) for expert in range(count)]


LAYERS = {  # config.json, and the names of its layer 7
    "dense": (QWEN3_4B, DENSE_TE),
    "moe": (QWEN3_30B_A3B, MOE_TE),
    "Qwen2.5": (published.QWEN2_5_7B, QKV_BIAS_TE),
    "GLM-4": (published.GLM_4_9B, POST_NORMS_TE),
    "GLM-4.5": (
        published.GLM_4_5_AIR,
        [name for name in QKV_BIAS_TE if not name.startswith("mlp.")] + SIGMOID_TE + experts(128),
    ),
    "DeepSeek-V3": (published.DEEPSEEK_V3, LATENT_TE + QUERY_LATENT_TE + SIGMOID_TE + experts(256)),
    "Moonlight": (
        published.MOONLIGHT_16B_A3B,
        [*LATENT_TE, "self_attention.linear_q_proj.weight", *SIGMOID_TE, *experts(64)],
    ),
}


@pytest.mark.parametrize(("config", "te_names"), LAYERS.values(), ids=LAYERS)
def test_a_layer_of_transformer_engine_has_the_same_tensors(config, te_names):
    of_layer = [name for name in family_of(config).tensors if name.startswith("decoder.layers.7.")]
    assert sorted(local_spec_name(f"decoder.layers.7.{name}") for name in te_names) == sorted(of_layer)


@pytest.mark.parametrize(
    ("te", "local"),
    [
        ("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", "decoder.layers.0.input_layernorm.weight"),
        ("decoder.layers.0.self_attention.linear_qkv.layer_norm_bias", "decoder.layers.0.input_layernorm.bias"),
        ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", "decoder.layers.0.pre_mlp_layernorm.weight"),
        (
            "decoder.layers.0.mlp.experts.linear_fc1.weight12",
            "decoder.layers.0.mlp.experts.local_experts.12.linear_fc1.weight",
        ),
        (
            "decoder.layers.0.mlp.experts.linear_fc2.bias3",
            "decoder.layers.0.mlp.experts.local_experts.3.linear_fc2.bias",
        ),
        (
            "decoder.layers.0.mlp.shared_experts.linear_fc1.weight",
            "decoder.layers.0.mlp.shared_experts.linear_fc1.weight",
        ),
    ],
)
def test_transformer_engine_names(te, local):
    assert local_spec_name(te) == local
    assert local_spec_name(local) == local


def test_layers_are_numbered_over_the_model():
    """A chunk that holds layers 6 and 7."""
    names = [global_names(f"decoder.layers.{i}.input_layernorm.weight", [6, 7], 0, 1) for i in range(2)]
    assert names == [["decoder.layers.6.input_layernorm.weight"], ["decoder.layers.7.input_layernorm.weight"]]


def test_experts_are_numbered_over_the_expert_parallel_ranks():
    """Three ranks with two experts each: this one's second expert, and those beside it."""
    names = global_names("decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", [4], 2, 3)
    assert names == [f"decoder.layers.4.mlp.experts.local_experts.{e}.linear_fc1.weight" for e in (1, 3, 5)]


def test_other_names_stay():
    assert global_names("output_layer.weight", [6, 7], 0, 4) == ["output_layer.weight"]


@pytest.mark.parametrize("model", ["GLM-4.5", "DeepSeek-V3"])
def test_layers_for_multi_token_prediction_have_all_names_of_their_own_and_of_a_layer(model):
    config, of_layer = LAYERS[model]
    family = multi_token_model(family_of(config))
    inner = {local_spec_name(f"mtp.layers.0.mtp_model_layer.{name}") for name in of_layer}
    own = {f"mtp.layers.0.{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "final_layernorm")}
    assert {name for name in family.tensors if name.startswith("mtp.")} == inner | own
    assert [global_names(name, [], 1, 1) for name in own] == [[name] for name in own]
    layer = f"model.layers.{config['num_hidden_layers']}"
    assert family.tensors["mtp.layers.0.eh_proj.weight"].names == (f"{layer}.eh_proj.weight",)
    assert family.copy_of(f"{layer}.embed_tokens.weight") == "model.embed_tokens.weight"
    assert family.copy_of(f"{layer}.enorm.weight") is None
