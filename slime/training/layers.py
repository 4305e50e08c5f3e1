"""The layers of a GPTModel: Transformer Engine's, or Megatron's local ones with three of ours.

Megatron's local modules refuse sequence parallelism (norms), packed sequences and context parallelism (attention), and
go through a packed batch one sequence at a time (RoPE). Ours take all of these in plain torch operations, on any
device: `RMSNorm`, `SDPAttention` and `packed_rope`.

A packed micro-batch ("thd") is a row of T tokens; `cu_seqlens` (one more entry than sequences) says where each begins
and ends. Invariant that `slime.training.packing` keeps: the sequences tile the row, so that `cu_seqlens[-1]` is the
row's length over all context-parallel ranks. Under context parallelism each sequence is a multiple of 2·cp long, and
rank r holds its chunks r and 2·cp-1-r (zig-zag: equal work under a causal mask).

Shape suffixes: T tokens of this rank · B sequences · S longest sequence of this rank · G tokens of all cp ranks of the
longest sequence · H query heads · K key/value heads · D head dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlockSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from torch import Tensor, nn

from slime.training.latent_attention import LatentAttention


def block_spec(
    config: TransformerConfig, *, post_norms: bool = False, vp_stage: int | None = None
) -> TransformerBlockSubmodules:
    """Layers of this pipeline stage, dense and mixture-of-experts as `config.moe_layer_freq` says.

    Args:
        post_norms: whether the outputs of attention and of dense MLPs are normalised.

    Raises:
        ValueError: a model that the local layers can't express.
    """
    if config.transformer_impl == "transformer_engine":
        block = get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=vp_stage)
    else:
        block = _local_block(config, vp_stage)
    if config.multi_latent_attention:
        for layer in block.layer_specs:
            layer.submodules.self_attention.module = LatentAttention
    if post_norms:
        for layer in {id(layer): layer for layer in block.layer_specs}.values():
            _normalise_outputs(layer.submodules)
    return block


def _local_block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    beyond = {
        f"normalization {config.normalization}": config.normalization != "RMSNorm",
        f"window attention {config.window_size}": config.window_size is not None,
        f"softmax type {config.softmax_type}": config.softmax_type != "vanilla",
    }
    if any(beyond.values()):
        what = ", ".join(feature for feature, is_there in beyond.items() if is_there)
        raise ValueError(f"--transformer-impl local can't build a model with {what}; use transformer_engine")
    rope_utils._apply_rotary_pos_emb_thd = packed_rope
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage)
    for layer in block.layer_specs:  # dense layers share one spec, expert layers another
        layer.submodules.input_layernorm = RMSNorm
        layer.submodules.pre_mlp_layernorm = RMSNorm
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = SDPAttention
        if config.multi_latent_attention:
            attention.q_layernorm = RMSNorm if config.q_lora_rank else None
            attention.kv_layernorm = RMSNorm
        elif config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
        layer.submodules.sharded_state_dict_keys_map = _names_in_checkpoints(config, layer.submodules)
    return TransformerBlockSubmodules(layer_specs=block.layer_specs, layer_norm=RMSNorm)


def _names_in_checkpoints(config: TransformerConfig, layer: TransformerLayerSubmodules) -> dict[str, str]:
    """Transformer Engine's, where a norm is part of the linear layer that follows it, by how those of a local layer
    begin. Megatron's own map has them right for dense layers without latent attention."""
    names = {}
    if not config.multi_latent_attention:
        names["input_layernorm."] = "self_attention.linear_qkv.layer_norm_"
    else:
        for latent in ("q", "kv"):
            names[f"self_attention.{latent}_layernorm."] = f"self_attention.linear_{latent}_up_proj.layer_norm_"
    if layer.mlp.func is not MoELayer:  # whose router and experts share the norm
        names["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
    return names


def multi_token_spec(
    config: TransformerConfig, block: TransformerBlockSubmodules, *, vp_stage: int | None = None
) -> MultiTokenPredictionBlockSubmodules | None:
    """The layers for multi-token prediction, each like the last of `block`; None where this stage has none."""
    in_engine = config.transformer_impl == "transformer_engine"
    further = get_gpt_mtp_block_spec(config, block, use_transformer_engine=in_engine, vp_stage=vp_stage)
    if further is not None and not in_engine:
        for layer in further.layer_specs:
            layer.submodules.enorm = layer.submodules.hnorm = layer.submodules.layer_norm = RMSNorm
    return further


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm with the mark by which Megatron sums its gradient over the ranks that hold other tokens."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel


def _normalise_outputs(layer: TransformerLayerSubmodules) -> None:
    attention = layer.self_attention.submodules
    attention.linear_proj = normalised(attention.linear_proj)
    mlp = layer.mlp.keywords["submodules"]
    layer.mlp = partial(layer.mlp, submodules=replace(mlp, linear_fc2=normalised(mlp.linear_fc2)))


@cache
def normalised(linear: type[nn.Module]) -> type[nn.Module]:
    """The row-parallel layer `linear` of either implementation, with an RMSNorm `post_layernorm` over its output."""

    class NormalisedLinear(linear):
        def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **options: Any) -> None:
            super().__init__(input_size, output_size, config=config, **options)
            self.post_layernorm = RMSNorm(config, output_size, config.layernorm_epsilon)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            output, bias = super().forward(x)
            return self.post_layernorm(output), bias

    return NormalisedLinear


class SDPAttention(MegatronModule):
    """Causal attention of packed sequences in one call of torch's scaled_dot_product_attention.

    Sequences are padded on the right to the longest; padding needs no mask of its own, since causal rows never look
    right. That suits batches of similar lengths; for very uneven ones Transformer Engine's kernels waste less.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(config.kv_channels)
        self.dropout = config.attention_dropout
        self.cp_group = pg_collection.cp

    def forward(
        self,
        query_THD: Tensor,
        key_TKD: Tensor,
        value_TKD: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Returns [T, H·D]. Raises ValueError without packed sequences: that is the only form slime trains on."""
        if packed_seq_params is None or packed_seq_params.qkv_format != "thd":
            raise ValueError("SDPAttention takes packed sequences only (PackedSeqParams with qkv_format='thd')")
        cu_seqlens, longest = packed_seq_params.cu_seqlens_q, packed_seq_params.max_seqlen_q
        cp_size, cp_rank = self.cp_group.size(), self.cp_group.rank()
        sequence_T, offset_T = _sequence_and_offset(cu_seqlens // cp_size, query_THD.shape[0])
        if cp_size == 1:
            shape_q = shape_kv = (len(cu_seqlens) - 1, longest)
            slot_q = slot_kv = sequence_T * longest + offset_T
            mask = None
        else:
            # Every rank needs all keys and values; its own queries stay. Positions are those within the whole sequence.
            shape_q, shape_kv = (len(cu_seqlens) - 1, longest // cp_size), (len(cu_seqlens) - 1, longest)
            slot_q = sequence_T * shape_q[1] + offset_T
            position_of = [zigzag_positions(cu_seqlens, sequence_T, offset_T, r, cp_size) for r in range(cp_size)]
            slot_kv = torch.cat([sequence_T * longest + position_T for position_T in position_of])
            position_BS = position_of[cp_rank].new_zeros(shape_q).flatten().index_copy(0, slot_q, position_of[cp_rank])
            mask = position_BS.view(*shape_q, 1) >= torch.arange(longest, device=slot_q.device)
            mask = mask[:, None]  # [B, 1, S, G]
            key_TKD, value_TKD = self._of_all_ranks(key_TKD, value_TKD)
        out_BHSD = F.scaled_dot_product_attention(
            _pad(query_THD, slot_q, shape_q),
            _pad(key_TKD, slot_kv, shape_kv),
            _pad(value_TKD, slot_kv, shape_kv),
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=query_THD.shape[1] != key_TKD.shape[1],
        )
        return out_BHSD.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, slot_q)

    def _of_all_ranks(self, key_TKD: Tensor, value_TKD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [cp·T, K, D], rank after rank; their gradients are summed back to the rank they came from."""
        both = torch.stack([key_TKD, value_TKD], dim=1)
        gathered = gather_from_sequence_parallel_region(both, tensor_parallel_output_grad=True, group=self.cp_group)
        return gathered[:, 0], gathered[:, 1]


def packed_rope(
    x_THD: Tensor,
    cu_seqlens: Tensor,
    freqs: Tensor,
    rotary_interleaved: bool = False,
    mla_rotary_interleaved: bool = False,
    mscale: float = 1.0,
    cp_group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """Takes the place of Megatron's `_apply_rotary_pos_emb_thd`, which loops over the sequences in Python.

    Sines and cosines of the angles [longest, 1, 1, D] are gathered by the position of each token within its sequence.
    With x rolled by half of D, and the first half of the sines negative, the rotation is x · cos + rolled · sin.
    """
    sequence_T, offset_T = _sequence_and_offset(cu_seqlens // cp_group.size(), x_THD.shape[0])
    position_T = zigzag_positions(cu_seqlens, sequence_T, offset_T, cp_group.rank(), cp_group.size())
    dim = x_THD.shape[-1]
    if rotary_interleaved or mla_rotary_interleaved or freqs.shape[-1] != dim:
        return rope_utils._apply_rotary_pos_emb_bshd(
            x_THD.unsqueeze(1),
            freqs.index_select(0, position_T),
            rotary_interleaved=rotary_interleaved,
            mla_rotary_interleaved=mla_rotary_interleaved,
            mscale=mscale,
        ).squeeze(1)
    angles = freqs.squeeze(1)
    sines = angles.sin().view(-1, 1, 2, dim // 2) * angles.new_tensor([-1.0, 1.0]).view(2, 1)
    cos_T1D = (angles.cos() * mscale).to(x_THD.dtype).index_select(0, position_T)
    sin_T1D = (sines.flatten(-2) * mscale).to(x_THD.dtype).index_select(0, position_T)
    return torch.addcmul(x_THD * cos_T1D, x_THD.roll(dim // 2, dims=-1), sin_T1D)


def zigzag_positions(cu_seqlens: Tensor, sequence_T: Tensor, offset_T: Tensor, cp_rank: int, cp_size: int) -> Tensor:
    """Position within its whole sequence of each token that a context-parallel rank holds.

    Args:
        cu_seqlens: of the whole sequences.
        sequence_T, offset_T: which sequence a token of the rank belongs to, and where in the rank's share of it.
    """
    if cp_size == 1:
        return offset_T
    chunk_T = ((cu_seqlens[1:] - cu_seqlens[:-1]) // (2 * cp_size)).long().index_select(0, sequence_T)
    first_T, second_T = cp_rank * chunk_T, (2 * cp_size - 2 - cp_rank) * chunk_T
    return offset_T + torch.where(offset_T < chunk_T, first_T, second_T)


def _sequence_and_offset(cu_seqlens: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """For each of the packed tokens: its sequence, and its offset in it. Both int64 [T]."""
    starts = cu_seqlens[:-1].long()
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    sequences = torch.arange(len(starts), device=starts.device)
    sequence_T = torch.repeat_interleave(sequences, lengths, output_size=num_tokens)
    return sequence_T, torch.arange(num_tokens, device=starts.device) - starts.index_select(0, sequence_T)


def _pad(x_THD: Tensor, slot_T: Tensor, shape: tuple[int, int]) -> Tensor:
    """Packed [T, H, D] -> padded [B, H, S, D], token t in row-major slot `slot_T[t]` of [B, S]."""
    heads, dim = x_THD.shape[1:]
    padded = x_THD.new_zeros(shape[0] * shape[1], heads * dim).index_copy(0, slot_T, x_THD.flatten(1))
    return padded.view(*shape, heads, dim).transpose(1, 2)
