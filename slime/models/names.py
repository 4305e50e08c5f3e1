"""One name for each Megatron parameter, whatever the layer spec and the rank.

The form that families list: the local spec's names, with layers and experts numbered over the whole model. The other
forms are
  transformer-engine: a norm is part of the linear layer after it (linear_qkv.layer_norm_weight,
                      mlp.linear_fc1.layer_norm_weight, linear_kv_up_proj.layer_norm_weight)
  grouped experts:    one module holds all of a rank's experts (mlp.experts.linear_fc1.weight3)
  this rank's:        layers count from 0 within a pipeline stage, experts within an expert-parallel rank
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")
_SPEC = (
    (re.compile(r"\.self_attention\.linear_qkv\.layer_norm_(weight|bias)$"), r".input_layernorm.\1"),
    (re.compile(r"\.linear_(q|kv)_up_proj\.layer_norm_(weight|bias)$"), r".\1_layernorm.\2"),
    (re.compile(r"\.mlp\.linear_fc1\.layer_norm_(weight|bias)$"), r".pre_mlp_layernorm.\1"),
    (re.compile(r"\.experts\.linear_fc([12])\.(weight|bias)(\d+)$"), r".experts.local_experts.\3.linear_fc\1.\2"),
)
_OTHER_SPEC = (
    (re.compile(r"\.input_layernorm\.(weight|bias)$"), r".self_attention.linear_qkv.layer_norm_\1"),
    (re.compile(r"\.(q|kv)_layernorm\.(weight|bias)$"), r".linear_\1_up_proj.layer_norm_\2"),
    (re.compile(r"\.pre_mlp_layernorm\.(weight|bias)$"), r".mlp.linear_fc1.layer_norm_\1"),
    (re.compile(r"\.local_experts\.(\d+)\.linear_fc([12])\.(weight|bias)$"), r".linear_fc\2.\3\1"),
)
"""The other way."""


def local_spec_name(name: str) -> str:
    """The local layer spec's name of a parameter named by either spec."""
    for pattern, replacement in _SPEC:
        name = pattern.sub(replacement, name)
    return name


def names_by_either_spec(name: str) -> Iterator[str]:
    """All names that `local_spec_name` makes `name` of, itself among them."""
    yield name
    for pattern, replacement in _OTHER_SPEC:
        if (other := pattern.sub(replacement, name)) != name:
            yield other


def global_names(name: str, layers: Sequence[int], num_local_experts: int, expert_ranks: int) -> list[str]:
    """The family's names of a parameter and of its counterparts on the other expert-parallel ranks.

    `name` is in the local spec's form; `layers[i]` is the model's layer (from 0) that this chunk calls layer i. The
    list has one name for each expert-parallel rank if the parameter belongs to a routed expert, else one.
    """
    name = _LAYER.sub(lambda match: f"decoder.layers.{layers[int(match[1])]}.", name)
    if not (expert := _EXPERT.search(name)):
        return [name]
    head, tail = name[: expert.start(1)], name[expert.end(1) :]
    return [f"{head}{int(expert[1]) + rank * num_local_experts}{tail}" for rank in range(expert_ranks)]
