"""What a checkpoint's directory holds: figures of config.json, and weights of which only the headers matter."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from types import SimpleNamespace

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


def state_after(rollout_id: int) -> dict:
    """What state.json says after this rollout, of one step."""
    layout = dict.fromkeys(("tensor", "pipeline", "context", "expert", "world"), 1)
    counts = {"rollout_id": rollout_id, "num_steps": rollout_id + 1, "weight_version": rollout_id + 1}
    rest = {"has_reference": False, "layers": "local", "head": "logits", "layout": layout, "mtp_layers": 0}
    return {"progress": counts, "has_optimizer": True, **rest}


def write_checkpoint(directory: Path, rollout_id: int = 0) -> Path:
    """One of a run, with the files that can be looked at without torch; its tensors are 100 bytes of one file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "state.json").write_text(json.dumps(state_after(rollout_id)))
    (directory / "config.json").write_text(json.dumps(TINY))
    (directory / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    part = SimpleNamespace(relative_path="__0_0.distcp", offset=20, length=80)
    (directory / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data={"weight": part})))
    (directory / "__0_0.distcp").write_bytes(bytes(100))
    return directory
