"""Angles of the rotary embeddings far beyond the positions that they were first trained for, against transformers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from slime.models import family_of
from tests.distributed import run_ranks
from tests.models.published import DEEPSEEK_V3, KIMI_K2, LLAMA_3_1_8B, MOONLIGHT_16B_A3B
from tests.models.tiny import COMMON, KINDS, LATENT, megatron_model

POSITIONS = [0, 1, 100, 4095, 4097, 8191, 8193, 20_000, 131_071]
ONE_LAYER = {"num_hidden_layers": 1, "first_k_dense_replace": 1}


def rope_of(published: dict[str, Any]) -> dict[str, Any]:
    keys = ("rope_theta", "rope_scaling", "max_position_embeddings")
    return {key: published.get(key) for key in keys}


CONFIGS = {
    "Llama-3.1": COMMON | {"model_type": "llama", "head_dim": 128} | rope_of(LLAMA_3_1_8B),
    "DeepSeek-V3": LATENT | ONE_LAYER | {"qk_rope_head_dim": 64} | rope_of(DEEPSEEK_V3),
    "Kimi-K2": LATENT | ONE_LAYER | {"qk_rope_head_dim": 64} | rope_of(KIMI_K2),
    "Moonlight": LATENT | ONE_LAYER | {"qk_rope_head_dim": 64} | rope_of(MOONLIGHT_16B_A3B),
    "GLM-4": KINDS["glm4"] | {"head_dim": 128},
    "GLM-4.5": KINDS["glm4_moe"] | {"head_dim": 128},
}


def angles() -> dict[str, tuple[Tensor, float, float]]:
    """Angles [position, frequency] in Megatron's model, and the factors of its sines and of attention's scores."""
    found = {}
    for name, config in CONFIGS.items():
        with megatron_model(family_of(config | {"num_hidden_layers": 1})) as (chunk,):
            attention = chunk.decoder.layers[0].self_attention
            is_latent = hasattr(attention, "kv_layernorm")
            made = (attention if is_latent else chunk).rotary_pos_emb(max(POSITIONS) + 1)
            emb, factor = made if isinstance(made, tuple) else (made, 1.0)
            emb = emb[POSITIONS, 0, 0]
            interleaved = chunk.config.rotary_interleaved
            angle = emb[:, ::2] if interleaved else emb[:, : emb.shape[1] // 2]
            found[name] = (angle, factor, attention.core_attention.scale)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[Tensor, float, float]]:
    return run_ranks(angles, 1)[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_angles_and_scales(name, found):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {key: value for key, value in CONFIGS[name].items() if value is not None or key == "q_lora_rank"}
    config["model_type"] = config["model_type"].replace("kimi_k2", "deepseek_v3")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config | {"num_hidden_layers": 1})).model
    angle, factor, scale = found[name]
    expected = torch.tensor(POSITIONS)[:, None] * model.rotary_emb.inv_freq
    torch.testing.assert_close(angle, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(model.rotary_emb.attention_scaling, rel=1e-6)
    assert scale == pytest.approx(model.layers[0].self_attn.scaling, rel=1e-6)
