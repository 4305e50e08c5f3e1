"""The mixture of experts of DeepSeek-V3 (arXiv:2412.19437, section 2.1.2), which GLM-4.5 and Kimi-K2 share.

A few dense layers, then mixtures: experts that every token passes, beside routed ones. A router scores experts by the
sigmoid of their logits; the top ones are chosen by score plus a bias that balances their load, within the groups of
experts that score best; the chosen scores, without the bias, are normalised and scaled.

Layers beyond `num_hidden_layers` predict further tokens (multi-token prediction). Unless multi_token.py adds them to
the model they are not trained, and not sent to the engines; a saved checkpoint has them as its source has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from slime.models.decoder import Decoder, gated_mlp, routed_experts
from slime.models.mapping import Mapping, Replicated

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
BIAS = "e_score_correction_bias"


class SigmoidMixture(Decoder):
    required = Decoder.required | {
        "first_k_dense_replace", "moe_intermediate_size", "n_routed_experts", "n_shared_experts",
        "num_experts_per_tok", "routed_scaling_factor",
    }  # fmt: skip
    handled = Decoder.handled | {
        "moe_layer_freq", "n_group", "norm_topk_prob", "num_nextn_predict_layers", "scoring_func", "topk_group",
        "topk_method",
    }  # fmt: skip
    harmless = Decoder.harmless | {
        "aux_loss_alpha", "ep_size", "num_mtp_layers", "output_router_logits", "pretraining_tp", "seq_aux",
    }  # fmt: skip

    def unsupported(self) -> Iterator[str]:
        yield from super().unsupported()
        c = self.config
        if c.get("scoring_func", "sigmoid") != "sigmoid":
            yield f"scoring_func is {c['scoring_func']!r}, but only 'sigmoid' is supported"
        if c.get("topk_method", "noaux_tc") != "noaux_tc":
            yield f"topk_method is {c['topk_method']!r}, but only 'noaux_tc' is supported"
        if not c.get("norm_topk_prob", True) or c["num_experts_per_tok"] == 1:
            yield "scores of the chosen experts are not normalised (norm_topk_prob, num_experts_per_tok > 1)"
        if c.get("moe_layer_freq", 1) != 1:
            yield f"moe_layer_freq is {c['moe_layer_freq']}, but only 1 is supported"
        if self.has_groups and not c.get("topk_group"):
            yield f"lacks `topk_group`, of n_group {c['n_group']}"
        elif self.has_groups and c["num_experts_per_tok"] // c["topk_group"] != 2:
            # transformers and SGLang rank a group by its two best experts.
            yield (
                f"num_experts_per_tok {c['num_experts_per_tok']} with topk_group {c['topk_group']}: Megatron would rank"
                f" a group of experts by its {c['num_experts_per_tok'] // c['topk_group']} best ones instead of 2"
            )

    @property
    def num_mtp_layers(self) -> int:
        return self.config.get("num_nextn_predict_layers") or 0

    @property
    def has_groups(self) -> bool:
        return (self.config.get("n_group") or 1) > 1

    def transformer_fields(self) -> dict[str, Any]:
        c = self.config
        dense = c["first_k_dense_replace"]
        return super().transformer_fields() | {
            "num_moe_experts": c["n_routed_experts"],
            "moe_layer_freq": [int(layer >= dense) for layer in range(c["num_hidden_layers"])],
            "moe_ffn_hidden_size": c["moe_intermediate_size"],
            "moe_shared_expert_intermediate_size": c["n_shared_experts"] * c["moe_intermediate_size"],
            "moe_router_topk": c["num_experts_per_tok"],
            "moe_router_score_function": "sigmoid",
            "moe_router_topk_scaling_factor": c["routed_scaling_factor"],
            "moe_router_num_groups": c["n_group"] if self.has_groups else None,
            "moe_router_group_topk": c["topk_group"] if self.has_groups else None,
            "moe_router_dtype": "fp32",
            "moe_router_enable_expert_bias": True,
            # The bias moves between steps to even out the load in pre-training; in RL the engine has to follow.
            "moe_router_bias_update_rate": 0.0,
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
        }

    def mlp(self, layer: int, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        if layer < self.config["first_k_dense_replace"]:
            yield from super().mlp(layer, ours, hf)
            return
        yield f"{ours}.router.expert_bias", Replicated(f"{hf}.gate.{BIAS}")
        yield from routed_experts(ours, hf, self.config["n_routed_experts"])
        yield from gated_mlp(f"{ours}.shared_experts", f"{hf}.shared_experts")

    def keeps_dtype(self, hf_name: str) -> bool:
        return hf_name.endswith(BIAS)

    def passes_on(self, hf_name: str) -> bool:
        layer = _LAYER.match(hf_name)
        return layer is not None and int(layer[1]) >= self.config["num_hidden_layers"]
