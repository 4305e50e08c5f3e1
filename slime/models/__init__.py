"""One file a model family: HF config -> Megatron config, HF names <-> Megatron names, and the weights both ways.

    family = family_of(read_hf_config(directory))    # ModelError: unknown model_type, or a feature we would ignore
    family.transformer_fields()                      # what the model fixes of Megatron's TransformerConfig
    family.gpt_arguments(tensor_parallel_size)       # what the model fixes of GPTModel's arguments
    family.dtype                                     # torch.dtype that config.json names, or None
    value_model(family)                              # the same body with a value head
    multi_token_model(family)                        # the same with its layers for multi-token prediction

    shard = Shard(family, chunks)                    # this rank's GPTModels (one a virtual stage), bare or wrapped
    load_hf(shard, directory)                        # each rank reads only its own slices
    for bucket in export_hf(shard, bucket_bytes):    # collective; a bucket is a list of (hf_name, full tensor)
        ...
    save_hf(shard, directory, source=directory)      # collective; rank 0 writes, whole or not at all

Nothing here builds a model or imports Megatron: process groups are those that the chunks were built with. Every
parallel layout of Megatron (TP, PP with virtual stages, EP, ETP) and both layer specs (local and transformer-engine)
are handled alike, because names are first brought to one form (names.py) and a family lists that form once (qwen3.py).
What reads and writes tensors is imported when it is first named: a family is asked by `train.py --check`, too, which
has no seconds to spare for torch.
Why the mappings are our own, what each family is tested for and how to add one: docs/models.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slime.models.family import Family, ModelError
from slime.models.multi_token import multi_token_model
from slime.models.registry import family_of, read_hf_config
from slime.models.value_model import value_model

if TYPE_CHECKING:
    from slime.models.checkpoint import CheckpointError
    from slime.models.export import export_hf
    from slime.models.load import load_hf
    from slime.models.save import save_hf
    from slime.models.shard import Shard

_WITH_TORCH = {
    "CheckpointError": "checkpoint", "Shard": "shard", "export_hf": "export", "load_hf": "load", "save_hf": "save",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)


__all__ = [
    "CheckpointError",
    "Family",
    "ModelError",
    "Shard",
    "export_hf",
    "family_of",
    "load_hf",
    "multi_token_model",
    "read_hf_config",
    "save_hf",
    "value_model",
]
