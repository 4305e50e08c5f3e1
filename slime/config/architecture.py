"""The architecture in a checkpoint's config.json, under the option names that Megatron scripts have for it.

For checks and for the plan: building the model is the business of slime.models, which refuses what it does not know.
What figures.py reads is renamed here; a figure that config.json does not state stays out, and is then not compared.
"""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path
from typing import Any

from slime.config import figures
from slime.config.figures import Misstated
from slime.config.installed import source

REGISTRY = Path(__file__).parents[1] / "models" / "registry.py"
QK_NORM = ("qwen3", "qwen3_moe", "qwen3_next", "olmo2")  # families whose queries and keys are normalised
OF_SOME = ("num_experts", "moe_ffn_hidden_size", "moe_router_topk", "mtp_num_layers")  # that not all models have
QKV_BIAS = ("qwen2", "qwen2_moe")  # families with that bias by definition, not by a key


class Architecture(dict[str, Any]):
    """Option name -> value as config.json has it: num_layers, hidden_size, num_query_groups, ..."""

    model_type: str
    classes: tuple[str, ...]  # of transformers that build it, as config.json names them

    @property
    def parameters(self) -> tuple[int, int]:
        """How many parameters there are, and how many of them a token uses; norms and biases are left out."""
        embedding = self["vocab_size"] * self["hidden_size"]
        embeddings = embedding * (2 if self.get("untie_embeddings_and_output_weights") else 1)
        unused = sum(self["layers"]) * (self.get("num_experts", 0) - self.get("moe_router_topk", 0)) * self._expert
        used = embeddings + self.matrix_parameters
        return used + unused, used

    @property
    def matrix_parameters(self) -> int:
        """Those of all layers that a token is multiplied by."""
        hidden, matrices = self["hidden_size"], 3 if self.get("swiglu") else 2
        dense = matrices * hidden * self.get("ffn_hidden_size", 0)
        shared = matrices * hidden * self.get("moe_shared_expert_intermediate_size", 0)
        mixture = hidden * self.get("num_experts", 0) + self.get("moe_router_topk", 0) * self._expert + shared
        return sum(self._attention_parameters + (mixture if is_mixture else dense) for is_mixture in self["layers"])

    @property
    def attention_width(self) -> int:
        """Multiply-and-adds of one token that attends to another, in one layer: of its score and of its value."""
        heads = self["num_attention_heads"]
        if "kv_lora_rank" not in self:
            return 2 * heads * self["kv_channels"]
        return heads * (self["qk_head_dim"] + self["qk_pos_emb_head_dim"] + self["v_head_dim"])

    @property
    def _expert(self) -> int:
        return (3 if self.get("swiglu") else 2) * self["hidden_size"] * self.get("moe_ffn_hidden_size", 0)

    @property
    def _attention_parameters(self) -> int:
        """Of one layer. Latent attention projects queries (where they have a latent), keys and values down and up."""
        hidden, heads = self["hidden_size"], self["num_attention_heads"]
        if "kv_lora_rank" not in self:
            return hidden * self["kv_channels"] * (2 * heads + 2 * self["num_query_groups"])
        latent, rotated, value = self["kv_lora_rank"], self["qk_pos_emb_head_dim"], self["v_head_dim"]
        query = heads * (self["qk_head_dim"] + rotated)
        queries = (hidden + query) * self["q_lora_rank"] if "q_lora_rank" in self else hidden * query
        keys_and_values = hidden * (latent + rotated) + latent * heads * (self["qk_head_dim"] + value)
        return queries + keys_and_values + heads * value * hidden


@functools.cache
def trainable() -> tuple[str, ...]:
    """The model types that slime.models has families for; read off its source, since importing it takes torch."""
    for node in source.parse(REGISTRY).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="FAMILIES"), value=ast.Dict(keys=keys)):
                return tuple(key.value for key in keys)
    raise LookupError(f"{REGISTRY} has no FAMILIES")


def read(directory: str | Path) -> Architecture:
    """Raises ValueError, with the reason, when there is no config.json that describes a decoder; it is Misstated where
    there is one with values that cannot be."""
    file = Path(directory) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError("there is no config.json in it") from None
    except (OSError, ValueError, RecursionError) as error:  # the last where it is nested too deep
        raise ValueError(f"its config.json cannot be read: {error}") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError("its config.json does not name a model_type")
    decoder = config.get("text_config")  # a model with further modalities keeps its decoder there
    if decoder is not None and not isinstance(decoder, dict):
        raise Misstated(f"text_config is {json.dumps(decoder)}, not an object")
    try:
        return _architecture(figures.of(config | (decoder or {})))
    except KeyError as missing:
        raise ValueError(f"its config.json (model_type {config['model_type']}) does not state {missing}") from None


def _architecture(c: dict[str, Any]) -> Architecture:
    heads = c["num_attention_heads"]
    groups = c.get("num_key_value_heads", heads)
    rope = {"rope_theta": c.get("rope_theta")} | c.get("rope_parameters", {})
    experts = figures.experts(c) or None
    layers = _mixtures(c) if experts else [False] * c["num_hidden_layers"]
    gated = c["hidden_act"] == "silu" if "hidden_act" in c else None
    found = {
        "num_layers": c["num_hidden_layers"],
        "hidden_size": c["hidden_size"],
        "ffn_hidden_size": c.get("intermediate_size"),
        "num_attention_heads": heads,
        "group_query_attention": groups != heads,
        "num_query_groups": groups,
        "kv_channels": c.get("head_dim", c["hidden_size"] // heads),
        "swiglu": gated,
        "normalization": "RMSNorm" if "rms_norm_eps" in c else None,
        "norm_epsilon": c.get("rms_norm_eps"),
        "position_embedding_type": "rope" if rope["rope_theta"] else None,
        "use_rotary_position_embeddings": True if rope["rope_theta"] else None,
        "rotary_base": rope["rope_theta"],
        "rotary_percent": rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0)),
        "vocab_size": c["vocab_size"],
        "max_position_embeddings": c.get("max_position_embeddings"),
        "untie_embeddings_and_output_weights": not c.get("tie_word_embeddings", False),
        "qk_layernorm": c.get("use_qk_norm", True if c["model_type"] in QK_NORM else None),
        "disable_bias_linear": not c.get("mlp_bias", False),
        "add_qkv_bias": c.get("attention_bias", c["model_type"] in QKV_BIAS),
        "num_experts": experts,
        "layers": layers,
        "mtp_num_layers": c.get("num_nextn_predict_layers"),
    }
    if "kv_lora_rank" in c:
        found |= latent_attention(c)
    if experts:
        shared = c.get("shared_expert_intermediate_size") or c.get("n_shared_experts", 0) * c["moe_intermediate_size"]
        found |= {
            "moe_ffn_hidden_size": c["moe_intermediate_size"],
            "moe_router_topk": c["num_experts_per_tok"],
            "moe_shared_expert_intermediate_size": shared or None,
            "first_k_dense_replace": c.get("first_k_dense_replace"),
            "moe_router_topk_scaling_factor": c.get("routed_scaling_factor"),
            "moe_router_score_function": "sigmoid" if "routed_scaling_factor" in c else None,
        }
    architecture = Architecture({name: value for name, value in found.items() if value is not None})
    architecture.model_type = c["model_type"]
    architecture.classes = tuple(c.get("architectures", ()))
    return architecture


def latent_attention(c: dict[str, Any]) -> dict[str, Any]:
    """Megatron's fields of multi-head latent attention, from config.json."""
    return {
        "multi_latent_attention": True,
        "q_lora_rank": c.get("q_lora_rank"),
        "kv_lora_rank": c["kv_lora_rank"],
        "qk_head_dim": c["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": c["qk_rope_head_dim"],
        "v_head_dim": c["v_head_dim"],
        "kv_channels": c["v_head_dim"],
        "qk_layernorm": True,  # of the latents
    }


def _mixtures(c: dict[str, Any]) -> list[bool]:
    """Whether each layer is a mixture of experts."""
    dense = c.get("first_k_dense_replace", 0)
    step = c.get("decoder_sparse_step", c.get("moe_layer_freq", 1))
    only_dense = c.get("mlp_only_layers", ())
    if isinstance(step, list):
        return [bool(mixture) for mixture in step]
    offset = 1 if "decoder_sparse_step" in c else 0
    return [i >= dense and i not in only_dense and (i + offset) % step == 0 for i in range(c["num_hidden_layers"])]


def differences(stated: dict[str, Any], architecture: Architecture) -> list[tuple[str, Any, Any]]:
    """(option, what a script states, what config.json says) where the two differ."""
    found = []
    for name, value in stated.items():
        if name == "moe_layer_freq":
            pattern = (
                [i % value == 0 for i in range(architecture["num_layers"])]
                if isinstance(value, int)
                else list(map(bool, value))
            )
            if architecture.get("num_experts") and pattern != architecture["layers"]:
                found.append((name, value, [int(mixture) for mixture in architecture["layers"]]))
        elif name in architecture and not _same(value, architecture[name]):
            found.append((name, value, architecture[name]))
        elif name not in architecture and value and name in OF_SOME:
            found.append((name, value, "nothing of the sort"))
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, str):
        return a.lower() == str(b).lower()
    return abs(a - b) <= 1e-6 * abs(b) if isinstance(a, float) else a == b
