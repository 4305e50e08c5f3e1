"""The model: its files, and what scripts state of its architecture."""

from __future__ import annotations

import ast
from typing import Annotated, Any

from pydantic import BeforeValidator

from slime.config.section import Count, Index, Integers, Path, Positive, Section, Unit, option, required


class Model(Section):
    """Model"""

    hf_checkpoint: Path = required(
        "Hugging Face directory of the model: config.json, safetensors, tokenizer. Training starts from its weights,"
        " the engines serve it, and its chat template renders the prompts."
    )
    ref_load: Path | None = option(
        None,
        "The reference model of the KL loss, which is never updated: a Hugging Face directory, or one of checkpoints,"
        " of which the latest is taken.",
    )
    ref_ckpt_step: Index | None = option(None, "Rollout whose checkpoint of --ref-load is taken.", derived="the latest")


def _layer_pattern(value: Any) -> Any:
    """'[1]*48' or '([0]*1+[1]*47)' as in Megatron scripts -> a tuple of 0 and 1; only lists, + and * are read."""

    def read(node: ast.AST) -> list[int]:
        match node:
            case ast.List(elts=items):
                return [int(ast.literal_eval(item)) for item in items]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return read(left) + read(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if 0 <= times <= 10_000:
                return read(left) * times
            case _:
                raise ValueError("neither a number nor a pattern like [0]*1+[1]*47")

    if not isinstance(value, str) or value.strip().isdigit():
        return value
    try:
        return tuple(read(ast.parse(value.strip(), mode="eval").body))
    except SyntaxError:
        raise ValueError("neither a number nor a pattern like [0]*1+[1]*47") from None


class ModelArgs(Section):
    """Architecture (checked against config.json)

    The architecture is read from config.json of --hf-checkpoint. Scripts written for Megatron state it once more; what
    they state is compared, and a difference is an error.
    """

    model_name: str | None = option(None, "Kind of model: config.json's model_type, or the class it names.")
    num_layers: Count | None = option(None, "Transformer layers.")
    hidden_size: Count | None = option(None, "Width of the residual stream.")
    ffn_hidden_size: Count | None = option(None, "Inner width of the dense MLPs.")
    num_attention_heads: Count | None = option(None, "Query heads.")
    group_query_attention: bool | None = option(None, "Whether several query heads share a key-value head.")
    num_query_groups: Count | None = option(None, "Key-value heads.")
    kv_channels: Count | None = option(None, "Dimensions of one head.")
    swiglu: bool | None = option(None, "Whether the MLP is gated by SiLU.")
    normalization: str | None = option(None, "Kind of norm: RMSNorm.")
    norm_epsilon: Positive | None = option(None, "Epsilon of the norms.")
    position_embedding_type: str | None = option(None, "Kind of position embedding: rope.")
    use_rotary_position_embeddings: bool | None = option(None, "Whether positions are rotary.")
    rotary_base: Positive | None = option(None, "Base of the rotary frequencies.")
    rotary_percent: Positive | None = option(None, "Share of a head's dimensions that is rotated.")
    vocab_size: Count | None = option(None, "Rows of the embedding.")
    max_position_embeddings: Count | None = option(None, "Longest sequence the positions were made for.")
    untie_embeddings_and_output_weights: bool | None = option(None, "Whether the output matrix is not the embedding.")
    qk_layernorm: bool | None = option(None, "Whether queries and keys are normalised per head.")
    disable_bias_linear: bool | None = option(None, "Whether linear layers have no bias.")
    add_qkv_bias: bool | None = option(None, "Whether the query, key and value projections have a bias.")
    num_experts: Count | None = option(None, "Experts of a mixture-of-experts layer.")
    moe_ffn_hidden_size: Count | None = option(None, "Inner width of one expert.")
    moe_router_topk: Count | None = option(None, "Experts that a token visits.")
    moe_shared_expert_intermediate_size: Count | None = option(None, "Inner width of the shared experts together.")
    moe_layer_freq: Annotated[Count | Integers, BeforeValidator(_layer_pattern), Unit("PATTERN")] | None = option(
        None, "Which layers are mixtures: every n-th, or a pattern such as '[0]*1+[1]*47'."
    )
    mtp_num_layers: Index | None = option(None, "Layers after the last that predict further tokens.")
    first_k_dense_replace: Index | None = option(None, "Dense layers before the first mixture.")
