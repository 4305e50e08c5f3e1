"""GLM-4 dense (GLM-4-0414, GLM-Z1) and the GLM-4.5 mixtures of experts (4.5, 4.5-Air, 4.6).

The architectures are those of transformers' models/glm4 and models/glm4_moe. Half of each head is rotated; GLM-4
rotates neighbouring dimensions and normalises what attention and MLP put out, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slime.models.decoder import Decoder
from slime.models.mapping import FusedGateUp, Mapping, Replicated, Row
from slime.models.sigmoid_mixture import SigmoidMixture


class Glm4(Decoder):
    qkv_bias = None
    partly_rotated = True
    post_norms = True

    def transformer_fields(self) -> dict[str, Any]:
        return super().transformer_fields() | {"rotary_interleaved": True}

    def attention(self, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        yield from super().attention(ours, hf)
        layer = hf.removesuffix(".self_attn")
        yield f"{ours}.linear_proj.post_layernorm.weight", Replicated(f"{layer}.post_self_attn_layernorm.weight")

    def mlp(self, layer: int, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        yield f"{ours}.linear_fc1.weight", FusedGateUp(f"{hf}.gate_up_proj.weight")
        yield f"{ours}.linear_fc2.weight", Row(f"{hf}.down_proj.weight")
        of_layer = hf.removesuffix(".mlp")
        yield f"{ours}.linear_fc2.post_layernorm.weight", Replicated(f"{of_layer}.post_mlp_layernorm.weight")


class Glm4Moe(SigmoidMixture):
    handled = SigmoidMixture.handled | {"use_qk_norm"}
    qkv_bias = None
    partly_rotated = True

    @property
    def has_qk_norm(self) -> bool:
        return bool(self.config.get("use_qk_norm"))
