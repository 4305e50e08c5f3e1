"""A model with the layers that predict further tokens, to be trained beside it (multi-token prediction: DeepSeek-V3,
arXiv:2412.19437, section 2.2).

Layer k of them, from 1, sees the state of a position and the embedding of the token k places on, and predicts the next:

    x = W [norm(embedding of token i+k), norm(state of i)];  state' = layer(x);  logits = head(norm'(state'))

Embedding and head are the model's. Checkpoints repeat both in each of these layers; the copies are not read, and saved
as what they are copies of.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

from slime.models.decoder import Decoder
from slime.models.family import Family, ModelError
from slime.models.mapping import Column, Mapping, Replicated

COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
"""What a layer repeats, by its name there."""


def multi_token_model(family: Family) -> Family:
    """`family` with its layers for multi-token prediction. Raises ModelError when it has none."""
    if not family.num_mtp_layers:
        raise ModelError(
            f"config.json of model_type {family.model_type!r} has no layers for multi-token prediction"
            " (num_nextn_predict_layers): leave out --enable-mtp-training"
        )
    if family.tied:
        raise ModelError("multi-token prediction is not trained with tied embeddings: leave out --enable-mtp-training")
    return _with_further_layers(type(family))(family.config)


@cache
def _with_further_layers(family: type[Decoder]) -> type[Decoder]:
    class MultiTokenModel(family):
        def transformer_fields(self) -> dict[str, Any]:
            return super().transformer_fields() | {"mtp_num_layers": self.num_mtp_layers}

        def list_tensors(self) -> Iterator[tuple[str, Mapping]]:
            yield from super().list_tensors()
            for depth in range(self.num_mtp_layers):
                layer = self.config["num_hidden_layers"] + depth
                ours, hf = f"mtp.layers.{depth}", f"model.layers.{layer}"
                yield f"{ours}.enorm.weight", Replicated(f"{hf}.enorm.weight")
                yield f"{ours}.hnorm.weight", Replicated(f"{hf}.hnorm.weight")
                yield f"{ours}.eh_proj.weight", Column(f"{hf}.eh_proj.weight")
                yield from self.layer(layer, f"{ours}.mtp_model_layer", hf)
                yield f"{ours}.final_layernorm.weight", Replicated(f"{hf}.shared_head.norm.weight")

        @cached_property
        def _trained(self) -> set[str]:
            return {name for mapping in self.tensors.values() for name in mapping.names}

        def passes_on(self, hf_name: str) -> bool:
            return super().passes_on(hf_name) and hf_name not in self._trained

        def copy_of(self, hf_name: str) -> str | None:
            if not self.passes_on(hf_name):
                return None
            return next((whole for copy, whole in COPIES.items() if hf_name.endswith(f".{copy}")), None)

    return MultiTokenModel
