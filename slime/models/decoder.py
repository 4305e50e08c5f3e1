"""Decoder: what the descendants of Llama share, so that a family's file says only how it differs.

Rotary embeddings, grouped-query attention, gated MLPs with SiLU, RMSNorm before each, tied or untied embeddings. The
names are those of transformers' models/llama, which its descendants keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from slime.models.family import Family
from slime.models.mapping import QKV, GateUp, Mapping, Replicated, Row, Vocab


class Decoder(Family):
    required = frozenset({
        "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
        "num_key_value_heads", "rms_norm_eps", "vocab_size",
    })  # fmt: skip
    handled = frozenset({
        "attention_bias", "attention_dropout", "head_dim", "hidden_act", "layer_types", "max_window_layers",
        "mlp_bias", "partial_rotary_factor", "quantization_config", "rope_parameters", "rope_scaling", "rope_theta",
        "sliding_window", "tie_word_embeddings", "use_sliding_window",
    })  # fmt: skip

    rope_types: ClassVar[tuple[str, ...]] = ("default",)
    """Kinds of rotary embeddings that the family passes on to Megatron."""

    qkv_bias: ClassVar[bool | None] = False
    """Biases of the query, key and value projections; None: as config.json's attention_bias says."""

    partly_rotated: ClassVar[bool] = False
    """Whether only a share of each head is rotated, which then has to be stated; else all of it is."""

    def __init__(self, hf_config: dict[str, Any]):
        # transformers 5 writes one dict of rotary parameters where 4 wrote several keys.
        self.rope: dict[str, Any] = {"rope_theta": hf_config.get("rope_theta")}
        if (share := hf_config.get("partial_rotary_factor")) is not None:
            self.rope["partial_rotary_factor"] = share
        for key in ("rope_scaling", "rope_parameters"):
            self.rope |= hf_config.get(key) or {}
        self.rotated_share: float | None = self.rope.get("partial_rotary_factor")
        self.rope_type: str = self.rope.get("rope_type", self.rope.get("type", "default"))
        self.tied = bool(hf_config.get("tie_word_embeddings", False))
        super().__init__(hf_config)

    def unsupported(self) -> Iterator[str]:
        c = self.config
        if self.rope_type not in self.rope_types:
            yield f"rope scaling of type {self.rope_type!r} is not supported (only {', '.join(self.rope_types)})"
        if self.rope["rope_theta"] is None:
            yield "lacks `rope_theta`"
        if self.partly_rotated and self.rotated_share is None:
            yield "lacks `partial_rotary_factor`"
        if not self.partly_rotated and self.rotated_share not in (None, 1):
            yield f"partial_rotary_factor is {self.rotated_share}, but this family rotates whole heads"
        if self.qkv_bias is False and c.get("attention_bias"):
            yield "attention_bias is true, but this family has no biases in attention"
        if c.get("mlp_bias"):
            yield "mlp_bias is true, but this family has no biases in its MLPs"
        if c.get("attention_dropout"):
            yield f"attention_dropout is {c['attention_dropout']}, but only 0 is supported"
        if self._slides():
            yield "sliding-window attention is in use, but only full attention is supported"
        if c.get("hidden_act", "silu") != "silu":
            yield f"hidden_act is {c['hidden_act']!r}, but only 'silu' is supported"
        if c.get("quantization_config") and not self.fp8_block:
            yield (
                "the weights are quantised (quantization_config) and not in fp8 with a scale for each block; start"
                " from an unquantised checkpoint"
            )

    def _slides(self) -> bool:
        """Whether any layer attends to a window alone: as stated for each, else those from max_window_layers on."""
        c = self.config
        if layer_types := c.get("layer_types"):
            return "sliding_attention" in layer_types
        return bool(c.get("use_sliding_window")) and (c.get("max_window_layers") or 0) < c["num_hidden_layers"]

    @property
    def head_dim(self) -> int:
        return self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]

    @property
    def has_qkv_bias(self) -> bool:
        return bool(self.config.get("attention_bias")) if self.qkv_bias is None else self.qkv_bias

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normalised, head by head."""
        return False

    def transformer_fields(self) -> dict[str, Any]:
        import torch.nn.functional as F

        c = self.config
        return {
            "num_layers": c["num_hidden_layers"],
            "hidden_size": c["hidden_size"],
            "ffn_hidden_size": c["intermediate_size"],
            "num_attention_heads": c["num_attention_heads"],
            "num_query_groups": c["num_key_value_heads"],
            "kv_channels": self.head_dim,
            "normalization": "RMSNorm",
            "layernorm_epsilon": c["rms_norm_eps"],
            "qk_layernorm": self.has_qk_norm,
            "add_bias_linear": False,
            "add_qkv_bias": self.has_qkv_bias,
            "gated_linear_unit": True,
            "activation_func": F.silu,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        }

    def gpt_arguments(self, tensor_parallel_size: int) -> dict[str, Any]:
        rows = -(-self.config["vocab_size"] // tensor_parallel_size)
        arguments = {
            "vocab_size": rows * tensor_parallel_size,
            "max_sequence_length": self.config["max_position_embeddings"],
            "share_embeddings_and_output_weights": self.tied,
            "position_embedding_type": "rope",
            "rotary_base": self.rope["rope_theta"],
        }
        return arguments | {"rotary_percent": self.rotated_share} if self.partly_rotated else arguments

    def list_tensors(self) -> Iterator[tuple[str, Mapping]]:
        size = self.config["vocab_size"]
        embedding = "model.embed_tokens.weight"
        yield "embedding.word_embeddings.weight", Vocab(embedding, size)
        for layer in range(self.config["num_hidden_layers"]):
            yield from self.layer(layer, f"decoder.layers.{layer}", f"model.layers.{layer}")
        yield "decoder.final_layernorm.weight", Replicated("model.norm.weight")
        # With tied embeddings only a last pipeline stage that is not the first has this one: a copy of the embedding.
        yield "output_layer.weight", Vocab(embedding if self.tied else "lm_head.weight", size)

    def layer(self, layer: int, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        yield f"{ours}.input_layernorm.weight", Replicated(f"{hf}.input_layernorm.weight")
        yield from self.attention(f"{ours}.self_attention", f"{hf}.self_attn")
        yield f"{ours}.pre_mlp_layernorm.weight", Replicated(f"{hf}.post_attention_layernorm.weight")
        yield from self.mlp(layer, f"{ours}.mlp", f"{hf}.mlp")

    def attention(self, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        for kind in ("weight", "bias") if self.has_qkv_bias else ("weight",):
            q, k, v = (f"{hf}.{x}_proj.{kind}" for x in "qkv")
            yield f"{ours}.linear_qkv.{kind}", QKV(q, k, v, heads, groups, self.head_dim)
        if self.has_qk_norm:
            yield f"{ours}.q_layernorm.weight", Replicated(f"{hf}.q_norm.weight")
            yield f"{ours}.k_layernorm.weight", Replicated(f"{hf}.k_norm.weight")
        yield f"{ours}.linear_proj.weight", Row(f"{hf}.o_proj.weight")

    def mlp(self, layer: int, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        yield from gated_mlp(ours, hf)


def gated_mlp(ours: str, hf: str, expert: bool = False) -> Iterator[tuple[str, Mapping]]:
    """down(silu(gate(x)) * up(x)), without biases."""
    yield f"{ours}.linear_fc1.weight", GateUp(f"{hf}.gate_proj.weight", f"{hf}.up_proj.weight", expert=expert)
    yield f"{ours}.linear_fc2.weight", Row(f"{hf}.down_proj.weight", expert=expert)


def routed_experts(ours: str, hf: str, num_experts: int) -> Iterator[tuple[str, Mapping]]:
    """A router and its experts, each a gated MLP."""
    yield f"{ours}.router.weight", Replicated(f"{hf}.gate.weight")
    for e in range(num_experts):
        yield from gated_mlp(f"{ours}.experts.local_experts.{e}", f"{hf}.experts.{e}", expert=True)
