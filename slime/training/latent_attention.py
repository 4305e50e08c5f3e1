"""Multi-head latent attention: Megatron's, with what keeps it from training DeepSeek's models exactly set right.

Attention itself runs as any other: Megatron pads values to the width of keys, and cuts the padding off again.

Shape suffixes: T tokens of this rank · L compressed keys and values · P rotated part of a key, which all heads share.
"""

from __future__ import annotations

from typing import Any

from megatron.core.tensor_parallel import (
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from torch import Tensor


class LatentAttention(MLASelfAttention):
    """Takes the place of MLASelfAttention in the layer spec. Tensor parallelism needs sequence parallelism to train it
    (build.py refuses the rest): without, Megatron sums the gradient of the query's norm over ranks that each have the
    whole of it.
    """

    def _resolve_qk_norm_config(self, submodules: MLASelfAttentionSubmodules) -> dict[str, Any]:
        """As the spec says. Megatron would want a norm over the whole query where the query has no latent (Moonlight),
        and models have none.
        """
        return {
            name: getattr(submodules, name) or IdentityOp
            for name in ("linear_q_proj", "linear_q_up_proj", "linear_kv_up_proj", "q_layernorm", "kv_layernorm")
        }

    def _qkv_down_projection(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Compressed queries, and [T, 1, L + P]. The local layers cut L + P over ranks; joined again by Megatron, each
        rank would send back the gradient of P from its own heads alone. Scattered over the sequence, as transformer-
        engine's layers have it, Megatron sums it over the ranks.
        """
        query, latent_T1P = super()._qkv_down_projection(hidden_states)
        whole = self.config.kv_lora_rank + self.config.qk_pos_emb_head_dim
        if self.config.sequence_parallel and latent_T1P.shape[-1] != whole:
            latent_T1P = gather_from_tensor_model_parallel_region(latent_T1P, group=self.tp_group)
            latent_T1P = scatter_to_sequence_parallel_region(latent_T1P, group=self.tp_group)
        return query, latent_T1P
