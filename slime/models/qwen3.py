"""Qwen3, dense and mixture of experts: grouped-query attention with normalised queries and keys, gated MLPs, no biases.

The architecture is that of transformers' models/qwen3 and models/qwen3_moe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F

from slime.models.family import Family
from slime.models.mapping import QKV, GateUp, Mapping, Replicated, Row, Vocab


class Qwen3(Family):
    required = frozenset({
        "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads",
        "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "vocab_size",
    })  # fmt: skip
    handled = frozenset({
        "attention_bias", "attention_dropout", "hidden_act", "layer_types", "max_window_layers", "quantization_config",
        "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "use_sliding_window",
    })  # fmt: skip

    def __init__(self, hf_config: dict[str, Any]):
        # transformers 5 writes one dict of rotary parameters where 4 wrote two keys.
        self.rope: dict[str, Any] = {"rope_theta": hf_config.get("rope_theta")}
        for key in ("rope_scaling", "rope_parameters"):
            self.rope |= hf_config.get(key) or {}
        self.tied = bool(hf_config.get("tie_word_embeddings", False))
        super().__init__(hf_config)

    def unsupported(self) -> Iterator[str]:
        c = self.config
        rope_type = self.rope.get("rope_type", self.rope.get("type", "default"))
        if rope_type != "default":
            yield f"rope scaling of type {rope_type!r} is not supported (only plain rotary embeddings are)"
        if self.rope["rope_theta"] is None:
            yield "lacks `rope_theta`"
        if c.get("attention_bias"):
            yield "attention_bias is true, but this family has no biases in attention"
        if c.get("attention_dropout"):
            yield f"attention_dropout is {c['attention_dropout']}, but only 0 is supported"
        if c.get("use_sliding_window") or "sliding_attention" in (c.get("layer_types") or ()):
            yield "sliding-window attention is in use, but only full attention is supported"
        if c.get("hidden_act", "silu") != "silu":
            yield f"hidden_act is {c['hidden_act']!r}, but only 'silu' is supported"
        if c.get("quantization_config"):
            yield "the weights are quantised (quantization_config); start from an unquantised checkpoint"

    def transformer_fields(self) -> dict[str, Any]:
        c = self.config
        return {
            "num_layers": c["num_hidden_layers"],
            "hidden_size": c["hidden_size"],
            "ffn_hidden_size": c["intermediate_size"],
            "num_attention_heads": c["num_attention_heads"],
            "num_query_groups": c["num_key_value_heads"],
            "kv_channels": c["head_dim"],
            "normalization": "RMSNorm",
            "layernorm_epsilon": c["rms_norm_eps"],
            "qk_layernorm": True,
            "add_bias_linear": False,
            "add_qkv_bias": False,
            "gated_linear_unit": True,
            "activation_func": F.silu,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        }

    def gpt_arguments(self, tensor_parallel_size: int) -> dict[str, Any]:
        rows = -(-self.config["vocab_size"] // tensor_parallel_size)
        return {
            "vocab_size": rows * tensor_parallel_size,
            "max_sequence_length": self.config["max_position_embeddings"],
            "share_embeddings_and_output_weights": self.tied,
            "position_embedding_type": "rope",
            "rotary_base": self.rope["rope_theta"],
        }

    def list_tensors(self) -> Iterator[tuple[str, Mapping]]:
        size = self.config["vocab_size"]
        embedding = "model.embed_tokens.weight"
        yield "embedding.word_embeddings.weight", Vocab(embedding, size)
        for layer in range(self.config["num_hidden_layers"]):
            ours, hf = f"decoder.layers.{layer}", f"model.layers.{layer}"
            yield from self.attention(ours, hf)
            yield from self.mlp(layer, ours, hf)
        yield "decoder.final_layernorm.weight", Replicated("model.norm.weight")
        # With tied embeddings only a last pipeline stage that is not the first has this one: a copy of the embedding.
        yield "output_layer.weight", Vocab(embedding if self.tied else "lm_head.weight", size)

    def attention(self, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        c = self.config
        q, k, v = (f"{hf}.self_attn.{x}_proj.weight" for x in "qkv")
        yield f"{ours}.input_layernorm.weight", Replicated(f"{hf}.input_layernorm.weight")
        yield (
            f"{ours}.self_attention.linear_qkv.weight",
            QKV(q, k, v, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]),
        )
        yield f"{ours}.self_attention.q_layernorm.weight", Replicated(f"{hf}.self_attn.q_norm.weight")
        yield f"{ours}.self_attention.k_layernorm.weight", Replicated(f"{hf}.self_attn.k_norm.weight")
        yield f"{ours}.self_attention.linear_proj.weight", Row(f"{hf}.self_attn.o_proj.weight")

    def mlp(self, layer: int, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        yield f"{ours}.pre_mlp_layernorm.weight", Replicated(f"{hf}.post_attention_layernorm.weight")
        yield from gated_mlp(f"{ours}.mlp", f"{hf}.mlp")

    def ignores(self, hf_name: str) -> bool:
        return super().ignores(hf_name) or (self.tied and hf_name == "lm_head.weight")


class Qwen3Moe(Qwen3):
    """Layers of routed experts (softmax router, no shared expert), mixed with dense ones where config.json says so."""

    required = Qwen3.required | {"moe_intermediate_size", "num_experts_per_tok"}
    handled = Qwen3.handled | {
        "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "num_experts", "num_local_experts",
        "output_router_logits", "router_aux_loss_coef",
    }  # fmt: skip

    @property
    def num_experts(self) -> int:
        return self.config.get("num_experts") or self.config["num_local_experts"]

    def unsupported(self) -> Iterator[str]:
        yield from super().unsupported()
        if not (self.config.get("num_experts") or self.config.get("num_local_experts")):
            yield "lacks `num_experts`"

    def is_moe(self, layer: int) -> bool:
        c = self.config
        return layer not in (c.get("mlp_only_layers") or ()) and (layer + 1) % c.get("decoder_sparse_step", 1) == 0

    def transformer_fields(self) -> dict[str, Any]:
        c = self.config
        return super().transformer_fields() | {
            "num_moe_experts": self.num_experts,
            "moe_layer_freq": [int(self.is_moe(layer)) for layer in range(c["num_hidden_layers"])],
            "moe_ffn_hidden_size": c["moe_intermediate_size"],
            "moe_router_topk": c["num_experts_per_tok"],
            # Normalising the chosen probabilities equals a softmax over the chosen logits alone.
            "moe_router_pre_softmax": not c.get("norm_topk_prob", False),
            "moe_router_score_function": "softmax",
            "moe_router_dtype": "fp32",
            # RL optimises the policy loss alone; config.json's router_aux_loss_coef is for pre-training.
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
        }

    def mlp(self, layer: int, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        if not self.is_moe(layer):
            yield from super().mlp(layer, ours, hf)
            return
        yield f"{ours}.pre_mlp_layernorm.weight", Replicated(f"{hf}.post_attention_layernorm.weight")
        yield f"{ours}.mlp.router.weight", Replicated(f"{hf}.mlp.gate.weight")
        for e in range(self.num_experts):
            yield from gated_mlp(f"{ours}.mlp.experts.local_experts.{e}", f"{hf}.mlp.experts.{e}", expert=True)


def gated_mlp(ours: str, hf: str, expert: bool = False) -> Iterator[tuple[str, Mapping]]:
    """down(silu(gate(x)) * up(x)), without biases."""
    yield f"{ours}.linear_fc1.weight", GateUp(f"{hf}.gate_proj.weight", f"{hf}.up_proj.weight", expert=expert)
    yield f"{ours}.linear_fc2.weight", Row(f"{hf}.down_proj.weight", expert=expert)
