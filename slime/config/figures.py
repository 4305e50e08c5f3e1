"""The keys of a config.json that are read here and by the families of slime.models.

Each has to be of the kind that it should be, and all of them of one model.

Invariants: what is not stated stays out, and null states nothing; nobody who reads on meets a number that is a text, or
a count below one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class Misstated(ValueError):
    """Keys whose values cannot be of a model; the message names each."""


@dataclass(frozen=True)
class Kind:
    words: str
    fits: Callable[[Any], bool]


COUNT = Kind("a whole number of at least 1", lambda value: type(value) is int and value >= 1)
DEPTH = Kind("a whole number from 1 to 10,000", lambda value: COUNT.fits(value) and value <= 10_000)
INDEX = Kind("a whole number of at least 0", lambda value: type(value) is int and value >= 0)
NUMBER = Kind("a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf)
SHARE = Kind("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)
FLAG = Kind("true or false", lambda value: type(value) is bool)
TEXT = Kind("a text", lambda value: isinstance(value, str))
TEXTS = Kind("a list of texts", lambda value: isinstance(value, list) and all(map(TEXT.fits, value)))
LAYERS = Kind("a list of layers", lambda value: isinstance(value, list) and all(map(INDEX.fits, value)))
STEP = Kind(f"{COUNT.words}, or one for each layer", lambda value: COUNT.fits(value) or LAYERS.fits(value))
TOKENS = Kind(
    "the id of a token, or a list of them",
    lambda value: INDEX.fits(value) or (isinstance(value, list) and all(map(INDEX.fits, value))),
)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))

KINDS: dict[str, Kind] = {
    "model_type": TEXT,
    "architectures": TEXTS,
    "num_hidden_layers": DEPTH,
    "hidden_size": COUNT,
    "intermediate_size": COUNT,
    "num_attention_heads": COUNT,
    "num_key_value_heads": COUNT,
    "head_dim": COUNT,
    "hidden_act": TEXT,
    "attention_dropout": SHARE,
    "layer_types": TEXTS,
    "use_sliding_window": FLAG,
    "max_window_layers": INDEX,
    "dtype": TEXT,
    "torch_dtype": TEXT,
    "quantization_config": OBJECT,
    "rms_norm_eps": NUMBER,
    "rope_theta": NUMBER,
    "rope_scaling": OBJECT,
    "rope_parameters": OBJECT,
    "partial_rotary_factor": NUMBER,
    "vocab_size": COUNT,
    "eos_token_id": TOKENS,
    "max_position_embeddings": COUNT,
    "tie_word_embeddings": FLAG,
    "attention_bias": FLAG,
    "mlp_bias": FLAG,
    "use_qk_norm": FLAG,
    "q_lora_rank": COUNT,
    "kv_lora_rank": COUNT,
    "qk_nope_head_dim": COUNT,
    "qk_rope_head_dim": COUNT,
    "rope_interleave": FLAG,
    "v_head_dim": COUNT,
    "num_experts": INDEX,
    "n_routed_experts": COUNT,
    "num_local_experts": INDEX,
    "num_experts_per_tok": COUNT,
    "n_group": COUNT,
    "topk_group": COUNT,
    "n_shared_experts": INDEX,
    "scoring_func": TEXT,
    "topk_method": TEXT,
    "norm_topk_prob": FLAG,
    "shared_expert_intermediate_size": INDEX,
    "moe_intermediate_size": COUNT,
    "routed_scaling_factor": NUMBER,
    "first_k_dense_replace": INDEX,
    "decoder_sparse_step": COUNT,
    "moe_layer_freq": STEP,
    "mlp_only_layers": LAYERS,
    "num_nextn_predict_layers": INDEX,
}


def of(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of `KINDS` that a config.json states. Raises Misstated with all that cannot be so."""
    stated = {key: config[key] for key in KINDS if config.get(key) is not None}
    rope = stated["rope_parameters"] if OBJECT.fits(stated.get("rope_parameters")) else {}
    rotary = {f"rope_parameters.{key}": rope[key] for key in KINDS if rope.get(key) is not None}
    wrong = [
        f"{key} is {json.dumps(value)}, not {kind.words}"
        for key, value in (stated | rotary).items()
        if not (kind := KINDS[key.rpartition(".")[2]]).fits(value)
    ]
    if wrong := wrong or list(_contradictions(stated)):
        raise Misstated("; ".join(wrong))
    return stated


def experts(stated: dict[str, Any]) -> int:
    """How many experts a layer has, by whichever key a family calls them; 0: the model is dense."""
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    return next((stated[name] for name in names if stated.get(name)), 0)


def _contradictions(stated: dict[str, Any]) -> Iterator[str]:
    """Figures that no model has together."""
    layers, heads, groups = (
        stated.get(key) for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    )
    if heads and groups and heads % groups:
        yield f"num_key_value_heads {groups} does not divide num_attention_heads {heads}"
    hidden, has_own_size = stated.get("hidden_size"), {"head_dim", "kv_lora_rank"} & stated.keys()
    if heads and hidden and hidden % heads and not has_own_size:
        yield f"num_attention_heads {heads} does not divide hidden_size {hidden}, and there is no head_dim"
    ends, vocabulary = stated.get("eos_token_id"), stated.get("vocab_size")
    if ends is not None and vocabulary and min(ends if isinstance(ends, list) else [ends], default=0) >= vocabulary:
        yield f"eos_token_id {json.dumps(ends)} is beyond vocab_size {vocabulary}, so no response would end"
    if layers:
        beyond = [layer for layer in stated.get("mlp_only_layers", ()) if layer >= layers]
        if beyond:
            yield f"mlp_only_layers names layer {beyond[0]} of {layers} (num_hidden_layers)"
        if stated.get("first_k_dense_replace", 0) > layers:
            yield f"first_k_dense_replace {stated['first_k_dense_replace']} exceeds num_hidden_layers {layers}"
        if isinstance(step := stated.get("moe_layer_freq"), list) and len(step) != layers:
            yield f"moe_layer_freq has {len(step)} entries for num_hidden_layers {layers}"
    number = experts(stated)
    if not number:
        return
    chosen, groups, best = (stated.get(key, 1) for key in ("num_experts_per_tok", "n_group", "topk_group"))
    if chosen > number:
        yield f"num_experts_per_tok {chosen} exceeds the {number} experts"
    if number % groups:
        yield f"n_group {groups} does not divide the {number} experts"
    elif best > groups:
        yield f"topk_group {best} exceeds n_group {groups}"
    elif chosen > best * (number // groups):
        yield f"num_experts_per_tok {chosen} exceeds what topk_group {best} of n_group {groups} hold"
