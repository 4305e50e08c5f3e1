"""Family: what has to be known about one kind of model to train it with Megatron and to serve it from HF files.

A family is bound to one config.json. It is pure knowledge: it builds nothing, and two families of the same config are
equal in all they say. A new one is a file like qwen2.py and a line in registry.py; docs/models.md shows one.

Invariant: importing a family and making one does not import torch, which takes seconds: `train.py --check` asks, too.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from slime.models.mapping import Mapping

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")


class ModelError(ValueError):
    """A model that we cannot represent faithfully; the message says what in it, and what would work."""


class Family(ABC):
    """Raises ModelError when made from a config.json that lacks a key or asks for what this family would not do."""

    required: ClassVar[frozenset[str]]
    """Keys of config.json without which the model is not defined."""

    handled: ClassVar[frozenset[str]] = frozenset()
    """Optional keys that the family reads."""

    harmless: ClassVar[frozenset[str]] = frozenset({
        "_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype",
        "eos_token_id", "initializer_range", "model_type", "pad_token_id", "torch_dtype", "transformers_version",
        "use_cache",
    })  # fmt: skip
    """Keys that do not change what the model computes."""

    has_value_head: ClassVar[bool] = False
    """Whether the model gives a value for each token, and no logits; see value_model.py."""

    post_norms: ClassVar[bool] = False
    """Whether the outputs of attention and MLP are normalised before they are added to the residual stream."""

    def __init__(self, hf_config: dict[str, Any]):
        self.config = hf_config
        self.model_type: str = hf_config["model_type"]
        problems = [f"lacks `{key}`" for key in sorted(self.required) if hf_config.get(key) is None]
        if (name := hf_config.get("dtype") or hf_config.get("torch_dtype")) and name not in DTYPES:
            problems.append(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
        if not problems:
            problems = list(self.unsupported())
        if problems:
            raise ModelError(f"config.json of model_type {self.model_type!r}: " + "; ".join(problems))
        known = self.required | self.handled | self.harmless
        if unknown := sorted(key for key, value in hf_config.items() if value and key not in known):
            logger.warning("config.json of model_type %r: not used here: %s", self.model_type, ", ".join(unknown))

    @abstractmethod
    def unsupported(self) -> Iterator[str]:
        """What this config.json asks for that would be silently ignored, one clause each; nothing when all is well."""

    @abstractmethod
    def transformer_fields(self) -> dict[str, Any]:
        """Fields of Megatron's TransformerConfig that the model fixes (sizes, norms, activation, routing).

        Parallelism, precision and kernels are the trainer's to add. With `multi_latent_attention` among them, the class
        to make is MLATransformerConfig.
        """

    @abstractmethod
    def gpt_arguments(self, tensor_parallel_size: int) -> dict[str, Any]:
        """Arguments of Megatron's GPTModel that the model fixes; `vocab_size` is a multiple of tensor_parallel_size."""

    @abstractmethod
    def list_tensors(self) -> Iterator[tuple[str, Mapping]]:
        """(Megatron name, mapping) of every tensor of the whole model, over all layers and experts.

        Megatron names are those of the local layer spec with layers and experts numbered globally; see names.py.
        A buffer (a router's bias, say) is listed like a parameter.
        """

    def ignores(self, hf_name: str) -> bool:
        """Whether a checkpoint's tensor that `tensors` does not name may be left unread (precomputed rotary tables)."""
        return hf_name.endswith(".rotary_emb.inv_freq") or bool(self.fp8_block and hf_name.endswith("_scale_inv"))

    @property
    def fp8_block(self) -> tuple[int, int] | None:
        """Rows and columns that share a scale, where the checkpoint's weights are in fp8; they are dequantised as they
        are read, and saved in the dtype that config.json names.
        """
        quantization = self.config.get("quantization_config") or {}
        block = quantization.get("weight_block_size")
        return (block[0], block[1]) if quantization.get("quant_method") == "fp8" and block else None

    def drops_zeros(self, hf_name: str) -> bool:
        """Whether a checkpoint's tensor that `tensors` does not name is left unread as long as all of it is zero."""
        return False

    def passes_on(self, hf_name: str) -> bool:
        """Whether a checkpoint's tensor that `tensors` does not name is left alone by training, and saved as it was."""
        return False

    def copy_of(self, hf_name: str) -> str | None:
        """The tensor of `tensors` that one which is passed on repeats, and is saved as; None: it is saved as it was."""
        return None

    def may_lack(self, hf_name: str) -> bool:
        """Whether a checkpoint need not have a tensor of `tensors`; its parameter is then left as it was made."""
        return False

    def keeps_dtype(self, hf_name: str) -> bool:
        """Whether a tensor is saved with the precision it has in training, whatever config.json names for weights."""
        return False

    @property
    def num_mtp_layers(self) -> int:
        """Layers of the checkpoint, after the model's, that predict further tokens; see multi_token.py."""
        return 0

    @cached_property
    def tensors(self) -> dict[str, Mapping]:
        """`list_tensors` as a dict."""
        return dict(self.list_tensors())

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that config.json names for the weights in its directory; None when it names none."""
        name = self.config.get("dtype") or self.config.get("torch_dtype")
        if name is None:
            return None
        import torch

        return getattr(torch, name)
