"""DeepSeek-V3 and R1, and what is built like them: Kimi-K2, Moonlight.

Multi-head latent attention (arXiv:2405.04434, section 2.1) and the mixture of sigmoid_mixture.py. Queries, where they
have a latent at all, keys and values are projected down, normalised, and projected up head by head; a part of each
head is rotated, with the key's part shared by all heads. The architecture is that of transformers' models/deepseek_v3;
code that a checkpoint brings along is not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slime.config.architecture import latent_attention
from slime.models.mapping import Column, Latent, Mapping, Replicated, Row
from slime.models.sigmoid_mixture import SigmoidMixture

YARN = frozenset({
    "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim", "original_max_position_embeddings",
    "partial_rotary_factor", "rope_theta", "rope_type", "type",
})  # fmt: skip


class DeepseekV3(SigmoidMixture):
    required = SigmoidMixture.required | {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}
    handled = SigmoidMixture.handled | {"q_lora_rank", "rope_interleave"}
    harmless = SigmoidMixture.harmless | {"qk_head_dim"}  # the sum of two others
    rope_types = ("default", "yarn")

    def unsupported(self) -> Iterator[str]:
        yield from super().unsupported()
        if not self.config.get("rope_interleave", True):
            yield "rope_interleave is false, but only true is supported"
        if self.config["num_key_value_heads"] != self.config["num_attention_heads"]:
            yield "num_key_value_heads differs from num_attention_heads"
        compared = self.config["qk_nope_head_dim"] + self.config["qk_rope_head_dim"]
        if (value := self.config["v_head_dim"]) > compared:  # Megatron pads values to the size of queries
            yield f"v_head_dim {value} exceeds {compared} (qk_nope_head_dim and qk_rope_head_dim)"
        if self.rope_type == "yarn":
            for key in ("factor", "original_max_position_embeddings"):
                if not self.rope.get(key):
                    yield f"rope scaling of type 'yarn' lacks `{key}`"
            if beyond := sorted(key for key in self.rope.keys() - YARN if self.rope[key] is not None):
                yield f"rope scaling of type 'yarn' with {', '.join(beyond)} is not supported"

    def transformer_fields(self) -> dict[str, Any]:
        return super().transformer_fields() | {
            **latent_attention(self.config),
            "rotary_base": self.rope["rope_theta"],
            **self.rotary_fields(),
        }

    def rotary_fields(self) -> dict[str, Any]:
        """YaRN (arXiv:2309.00071) with DeepSeek's two factors: sines and cosines are multiplied by m(mscale) /
        m(mscale_all_dim), attention's scale by m(mscale_all_dim)², where m(x) = 0.1 x ln(factor) + 1.
        """
        if self.rope_type == "default":
            return {"rope_type": "rope", "rotary_scaling_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}
        rope = self.rope
        return {
            "rope_type": "yarn",
            "rotary_scaling_factor": rope["factor"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
            "beta_fast": rope.get("beta_fast") or 32,
            "beta_slow": rope.get("beta_slow") or 1,
            # As transformers does, which reads a 0 as absent.
            "mscale": (rope.get("mscale") or 1.0) if rope.get("mscale_all_dim") else 1.0,
            "mscale_all_dim": rope.get("mscale_all_dim") or 0.0,
        }

    def attention(self, ours: str, hf: str) -> Iterator[tuple[str, Mapping]]:
        c = self.config
        if rank := c.get("q_lora_rank"):
            yield f"{ours}.linear_q_down_proj.weight", Latent(f"{hf}.q_a_proj.weight", rank)
            yield f"{ours}.q_layernorm.weight", Replicated(f"{hf}.q_a_layernorm.weight")
            yield f"{ours}.linear_q_up_proj.weight", Column(f"{hf}.q_b_proj.weight")
        else:
            yield f"{ours}.linear_q_proj.weight", Column(f"{hf}.q_proj.weight")
        rows = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        yield f"{ours}.linear_kv_down_proj.weight", Latent(f"{hf}.kv_a_proj_with_mqa.weight", rows)
        yield f"{ours}.kv_layernorm.weight", Replicated(f"{hf}.kv_a_layernorm.weight")
        yield f"{ours}.linear_kv_up_proj.weight", Column(f"{hf}.kv_b_proj.weight")
        yield f"{ours}.linear_proj.weight", Row(f"{hf}.o_proj.weight")
