"""SGLang's `torch_native` attention in one padded call a layer; its own makes one call a request, in a Python loop.

The functions are AROUND hooks of SGLang's plugin registry: `original` is the method they replace. It still serves what
is unusual (cross-attention, sliding windows, a cache of another dtype), and batches whose padded form would be too big.
The result is the original's up to rounding; `output` is written in place and returned, as there.

Shape suffixes: B requests of the batch · N their new tokens, concatenated · Q new tokens of the longest request · K
tokens of the longest request, cached ones included · S slots of the cache · H query heads · G key-value heads · D head
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
MAX_SCORES = 1 << 22  # B x Q x K; beyond, the padding and the mask cost more than the loop


def padded_decode(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query_BHD: torch.Tensor,
    output_BHD: torch.Tensor,
    k_cache_SGD: torch.Tensor,
    v_cache_SGD: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """One new token a request. `req_to_token` [request slot, position] -> slot of the cache."""
    longest = int(seq_lens_B.max())
    unusual = is_unusual(query_BHD, k_cache_SGD, encoder_lens, is_cross_attn, sliding_window_size)
    if unusual or len(seq_lens_B) * longest > MAX_SCORES:
        return original(
            *(backend, query_BHD, output_BHD, k_cache_SGD, v_cache_SGD, req_to_token, req_pool_indices_B, seq_lens_B),
            *(encoder_lens, scaling, enable_gqa, causal, is_cross_attn, sliding_window_size),
        )
    slots_BK = slots_of(req_to_token, req_pool_indices_B, seq_lens_B, longest)
    mask_BK = torch.arange(longest) < seq_lens_B[:, None]
    # The query heads that share a key-value head stand where several queries of one head would.
    attended_BGQD = scaled_dot_product_attention(
        query_BHD.unflatten(1, (k_cache_SGD.shape[1], -1)),
        rows(k_cache_SGD, slots_BK).transpose(1, 2),
        rows(v_cache_SGD, slots_BK).transpose(1, 2),
        attn_mask=mask_BK[:, None, None],
        scale=scaling,
    )
    return output_BHD.copy_(attended_BGQD.flatten(1, 2))


def padded_extend(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query_NHD: torch.Tensor,
    output_NHD: torch.Tensor,
    k_cache_SGD: torch.Tensor,
    v_cache_SGD: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    extend_prefix_lens_B: torch.Tensor,
    extend_seq_lens_B: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """The new part of each prompt: `extend_seq_lens_B` tokens after `extend_prefix_lens_B` cached ones."""
    longest, longest_new = int(seq_lens_B.max()), int(extend_seq_lens_B.max())
    unusual = not causal or is_unusual(query_NHD, k_cache_SGD, encoder_lens, is_cross_attn, sliding_window_size)
    if unusual or len(seq_lens_B) * longest_new * longest > MAX_SCORES:
        return original(
            *(backend, query_NHD, output_NHD, k_cache_SGD, v_cache_SGD, req_to_token, req_pool_indices_B, seq_lens_B),
            *(extend_prefix_lens_B, extend_seq_lens_B),
            *(encoder_lens, scaling, enable_gqa, causal, is_cross_attn, sliding_window_size),
        )
    slots_BK = slots_of(req_to_token, req_pool_indices_B, seq_lens_B, longest)
    new_Q = torch.arange(longest_new)
    real_BQ = new_Q < extend_seq_lens_B[:, None]
    first_B = extend_seq_lens_B.cumsum(0) - extend_seq_lens_B
    row_BQ = torch.where(real_BQ, first_B[:, None] + new_Q, 0)
    position_BQ = extend_prefix_lens_B[:, None] + new_Q
    # A padded query sees keys beyond its request; its result is dropped.
    mask_BQK = torch.arange(longest) <= position_BQ[:, :, None]
    attended_BHQD = scaled_dot_product_attention(
        rows(query_NHD, row_BQ).transpose(1, 2),
        rows(k_cache_SGD, slots_BK).transpose(1, 2),
        rows(v_cache_SGD, slots_BK).transpose(1, 2),
        attn_mask=mask_BQK[:, None],
        scale=scaling,
        enable_gqa=enable_gqa,
    )
    attended_ND = attended_BHQD.transpose(1, 2)[real_BQ]
    output_NHD[: len(attended_ND)] = attended_ND
    return output_NHD


def is_unusual(
    query: torch.Tensor,
    cache: torch.Tensor,
    encoder_lens: torch.Tensor | None,
    is_cross_attn: bool,
    sliding_window_size: int | None,
) -> bool:
    has_window = sliding_window_size is not None and sliding_window_size > -1
    return encoder_lens is not None or is_cross_attn or has_window or query.dtype != cache.dtype


def slots_of(
    req_to_token: torch.Tensor, req_pool_indices_B: torch.Tensor, seq_lens_B: torch.Tensor, longest: int
) -> torch.Tensor:
    """[B, K] slots of the cache. Padding repeats the request's own last token: whatever else lies in the cache, a NaN
    for instance, would reach the result even with weight 0."""
    position_BK = torch.minimum(torch.arange(longest), (seq_lens_B - 1).clamp(min=0)[:, None])
    return req_to_token[req_pool_indices_B[:, None], position_BK].long()


def rows(values: torch.Tensor, index_BK: torch.Tensor) -> torch.Tensor:
    """values[index_BK], which on a CPU takes several times as long."""
    return values.index_select(0, index_BK.flatten()).unflatten(0, index_BK.shape)


def install() -> None:
    """Registers both with SGLang, which applies them in each of its processes when it loads its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{BACKEND}._run_sdpa_forward_decode", padded_decode, HookType.AROUND)
    HookRegistry.register(f"{BACKEND}._run_sdpa_forward_extend", padded_extend, HookType.AROUND)
