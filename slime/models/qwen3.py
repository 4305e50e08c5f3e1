"""Qwen3, dense and mixture of experts: grouped-query attention with normalised queries and keys, no biases.

The architecture is that of transformers' models/qwen3 and models/qwen3_moe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slime.models.decoder import Decoder, routed_experts
from slime.models.mapping import Mapping


class Qwen3(Decoder):
    required = Decoder.required | {"head_dim"}

    @property
    def has_qk_norm(self) -> bool:
        return True


class Qwen3Moe(Qwen3):
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
        if self.config["num_experts_per_tok"] == 1 and self.config.get("norm_topk_prob"):
            yield "num_experts_per_tok is 1 with norm_topk_prob, which leaves the score of an expert at 1"

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
        if self.is_moe(layer):
            yield from routed_experts(ours, hf, self.num_experts)
        else:
            yield from super().mlp(layer, ours, hf)
