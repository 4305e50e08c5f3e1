"""Llama 3, 3.1, 3.2 and 3.3: the plain decoder, with rotary embeddings stretched by frequency from 3.1 on.

The architecture is that of transformers' models/llama; the stretching is `rope_type` "llama3" of its
modeling_rope_utils: wavelengths above 8192 tokens grow by `factor`, those below 2048 stay, with a ramp between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slime.models.decoder import Decoder

BUILT_IN = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Megatron has an argument for the factor alone; all models published so far have these."""


class Llama(Decoder):
    handled = Decoder.handled | {"pretraining_tp"}  # another order of summation, of the same numbers
    rope_types = ("default", "llama3")

    def unsupported(self) -> Iterator[str]:
        yield from super().unsupported()
        if self.rope_type == "llama3":
            if "factor" not in self.rope:
                yield "rope scaling of type 'llama3' lacks `factor`"
            for key, value in BUILT_IN.items():
                if self.rope.get(key) != value:
                    yield f"rope scaling of type 'llama3' has {key} {self.rope.get(key)}; Megatron's is {value}"

    def gpt_arguments(self, tensor_parallel_size: int) -> dict[str, Any]:
        arguments = super().gpt_arguments(tensor_parallel_size)
        if self.rope_type == "llama3":
            arguments |= {"rope_scaling": True, "rope_scaling_factor": self.rope["factor"]}
        return arguments
