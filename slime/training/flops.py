"""Floating-point operations of a forward pass, counted from the shapes of the matrices: two for each multiply-and-add.

A backward pass is twice a forward pass; recomputation is not counted, since it is no work that the model asks for.
"""

from __future__ import annotations

import numpy as np
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig


def forward_flops(config: TransformerConfig, vocab_size: int, lengths: np.ndarray, responses: np.ndarray) -> float:
    """Operations on all ranks for samples of these lengths in tokens, with logits for their response tokens alone."""
    hidden, layers = config.hidden_size, config.num_layers
    tokens = float(lengths.sum())
    projections, scores_and_values = _latent(config) if config.multi_latent_attention else _grouped(config)
    pairs = float((lengths.astype(np.float64) ** 2).sum()) / 2  # half of them behind the causal mask
    attention = scores_and_values * pairs
    matrices = 3 if config.gated_linear_unit else 2
    dense = matrices * hidden * config.ffn_hidden_size
    experts = matrices * hidden * (
        (config.moe_ffn_hidden_size or 0) * config.moe_router_topk + (config.moe_shared_expert_intermediate_size or 0)
    ) + hidden * (config.num_moe_experts or 0)
    num_moe = _num_moe_layers(config)
    mlp = (layers - num_moe) * dense + num_moe * experts
    return 2 * (
        tokens * (layers * projections + mlp) + layers * attention + float(responses.sum()) * hidden * vocab_size
    )


def _grouped(config: TransformerConfig) -> tuple[int, int]:
    """Multiply-and-adds of a layer's projections of one token, and of its attention of one token to another."""
    query = config.num_attention_heads * config.kv_channels
    key_value = config.num_query_groups * config.kv_channels
    return config.hidden_size * (2 * query + 2 * key_value), 2 * query  # query and output; key and value


def _latent(config: MLATransformerConfig) -> tuple[int, int]:
    """The same of latent attention, where the query may have a latent too."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    latent, rotated = config.kv_lora_rank, config.qk_pos_emb_head_dim
    query, value = heads * (config.qk_head_dim + rotated), heads * config.v_head_dim
    queries = (hidden + query) * config.q_lora_rank if config.q_lora_rank else hidden * query
    keys_and_values = hidden * (latent + rotated) + latent * (heads * config.qk_head_dim + value)
    return queries + keys_and_values + value * hidden, query + value


def _num_moe_layers(config: TransformerConfig) -> int:
    if not config.num_moe_experts:
        return 0
    frequency = config.moe_layer_freq
    return sum(frequency) if isinstance(frequency, list) else -(-config.num_layers // frequency)
