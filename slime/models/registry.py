"""The families we have, and which of them a checkpoint belongs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime.models.deepseek import DeepseekV3
from slime.models.family import Family, ModelError
from slime.models.glm4 import Glm4, Glm4Moe
from slime.models.llama import Llama
from slime.models.qwen2 import Qwen2
from slime.models.qwen3 import Qwen3, Qwen3Moe

FAMILIES: dict[str, type[Family]] = {
    "deepseek_v3": DeepseekV3,
    "glm4": Glm4,
    "glm4_moe": Glm4Moe,
    "kimi_k2": DeepseekV3,
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Moe,
}
"""By config.json's `model_type`."""


def family_of(hf_config: dict[str, Any]) -> Family:
    """The family of a config.json.

    Raises ModelError for an unknown `model_type`, and when the family would not do what the file asks for.
    """
    model_type = hf_config.get("model_type")
    if model_type not in FAMILIES:
        raise ModelError(
            f"config.json: model_type {model_type!r} is not one of those we have: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type](hf_config)


def read_hf_config(directory: str | Path) -> dict[str, Any]:
    """config.json of a checkpoint directory. Raises ModelError when it is not there or is no JSON object."""
    path = Path(directory) / "config.json"
    try:
        hf_config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist: is {directory} a directory with a model in HF format?") from None
    except (OSError, ValueError, RecursionError) as error:  # the last where it is nested too deep
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(hf_config, dict):
        raise ModelError(f"{path} holds a JSON {type(hf_config).__name__}, not an object")
    return hf_config


def untrainable(config: Any) -> list[tuple[str, str]]:
    """(option, what is wrong) of models that a run would refuse: what --check asks before there are ranks to ask."""
    if config.debug_rollout_only:
        return []
    models = {option: getattr(config, option) for option in ("hf_checkpoint", "critic_load")}
    wrong = []
    for option, directory in models.items():
        if directory is not None and (Path(directory) / "config.json").is_file():
            try:
                family_of(read_hf_config(directory))
            except ModelError as error:
                wrong.append((f"--{option.replace('_', '-')}", f"{directory}: {error}"))
    return wrong
