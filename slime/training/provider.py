"""--custom-model-provider-path: a user's function that builds this rank's part of the model.

    from slime.training.provider import usual_model

    def model_provider(pre_process, post_process, vp_stage):
        model = usual_model(pre_process, post_process, vp_stage)
        model.embedding.requires_grad_(False)
        return model

What it returns is a GPTModel, or one that takes the same arguments, and whose parameters have the names that the
checkpoint's tensors are read into.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from megatron.core.models.gpt import GPTModel

from slime.config.hooks import load_hook

OPTION = "--custom-model-provider-path"
Builder = Callable[[bool, bool, int | None], GPTModel]
_usual: ContextVar[Builder] = ContextVar("usual")


def usual_model(pre_process: bool, post_process: bool, vp_stage: int | None = None) -> GPTModel:
    """What would be built without a provider. Raises LookupError outside of one."""
    return _usual.get()(pre_process, post_process, vp_stage)


def provided(path: str | None, usual: Builder, **place: Any) -> GPTModel:
    """The model of the function at `path` or, for None, the usual one. Raises ValueError when it is none."""
    provider = load_hook(OPTION, path)
    if provider is None:
        return usual(**place)
    before = _usual.set(usual)
    try:
        model = provider(**place)
    finally:
        _usual.reset(before)
    if not (hasattr(model, "decoder") and hasattr(model, "pg_collection")):
        raise ValueError(f"{OPTION} {path} returned a {type(model).__name__}, not a GPTModel of Megatron's")
    return model
