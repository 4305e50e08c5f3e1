"""A value function: the body of any family, and one number a token instead of the output layer.

In Hugging Face's format it is a model for sequence classification with one label: `score.weight` [1, hidden size]
beside the body, without a bias: transformers has none there. SGLang has, so some reward models come with one, which is
left out where it is zero and refused elsewhere. A checkpoint that lacks the head, as every language model does, leaves
that layer as it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from slime.models.family import Family
from slime.models.mapping import Mapping, Replicated

SCORE, SCORE_BIAS = "score.weight", "score.bias"


def value_model(family: Family) -> Family:
    """`family` with a value head. Its `output_layer.weight` is [1, hidden size], whole on every rank of the last
    stage."""
    return _with_value_head(type(family))(family.config)


@cache
def _with_value_head(family: type[Family]) -> type[Family]:
    class ValueModel(family):
        has_value_head = True

        def gpt_arguments(self, tensor_parallel_size: int) -> dict[str, Any]:
            return super().gpt_arguments(tensor_parallel_size) | {"share_embeddings_and_output_weights": False}

        def list_tensors(self) -> Iterator[tuple[str, Mapping]]:
            for name, mapping in super().list_tensors():
                if not name.startswith("output_layer."):
                    yield name, mapping
            yield "output_layer.weight", Replicated(SCORE)

        def may_lack(self, hf_name: str) -> bool:
            return hf_name == SCORE

        def ignores(self, hf_name: str) -> bool:
            return hf_name == "lm_head.weight" or super().ignores(hf_name)

        def drops_zeros(self, hf_name: str) -> bool:
            return hf_name == SCORE_BIAS or super().drops_zeros(hf_name)

        def keeps_dtype(self, hf_name: str) -> bool:
            return hf_name == SCORE or super().keeps_dtype(hf_name)

    return ValueModel
