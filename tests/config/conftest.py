"""A model directory and prompt files, small but as a user would have them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

# The public figures of Qwen3-30B-A3B.
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
TINY = {
    "model_type": "qwen3",
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 192,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 64,
}


def weight_shapes(config: dict) -> dict[str, list[int]]:
    """Tensors of a dense Qwen3 with tied embeddings."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "input_layernorm": [hidden],
        "self_attn.q_proj": [heads, hidden],
        "self_attn.k_proj": [groups, hidden],
        "self_attn.v_proj": [groups, hidden],
        "self_attn.o_proj": [hidden, heads],
        "post_attention_layernorm": [hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    layers = {f"layers.{i}.{name}": shape for i in range(config["num_hidden_layers"]) for name, shape in layer.items()}
    whole = {"embed_tokens": [config["vocab_size"], hidden], **layers, "norm": [hidden]}
    return {f"model.{name}.weight": shape for name, shape in whole.items()}


def write_weights(file: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file of zeros, as the format is described at https://huggingface.co/docs/safetensors."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


@pytest.fixture
def moe(tmp_path: Path) -> Path:
    """A directory that holds only the config.json of Qwen3-30B-A3B."""
    directory = tmp_path / "Qwen3-30B-A3B"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(QWEN3_30B_A3B))
    return directory


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A whole model directory; of its weights only the headers are read here."""
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(TINY))
    write_weights(directory / "model.safetensors", weight_shapes(TINY))
    (directory / "tokenizer.json").write_text("{}")
    return directory


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"input": "1+1=", "prompt": "1+1=", "label": "2"}\n')
    return file


@pytest.fixture
def complete(tiny: Path, prompts: Path) -> list[str]:
    """A command line that a run could start with: 4 prompts x 2 samples on one device, colocated."""
    return [
        "--hf-checkpoint", str(tiny), "--prompt-data", str(prompts), "--label-key", "label", "--rm-type", "exact_match",
        "--num-rollout", "3", "--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--colocate",
        "--actor-num-gpus-per-node", "1", "--rollout-max-response-len", "16",
    ]  # fmt: skip
