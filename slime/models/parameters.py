"""Names of parameters before there is a model: whether options that choose some by a pattern could find any."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from slime.models.family import Family, ModelError
from slime.models.multi_token import multi_token_model
from slime.models.names import names_by_either_spec
from slime.models.registry import family_of, read_hf_config

OPTIONS = ("only_train_params_name_list", "freeze_params_name_list")
_NUMBER = re.compile(r"^decoder\.layers\.\d+")


def unmatched_patterns(config: Any) -> list[tuple[str, str]]:
    """(option, what is wrong) of patterns that no parameter of the policy could have in its name, on whatever rank. A
    user's own model may have any."""
    config = config.of_role("actor")
    patterns = [(option, pattern) for option in OPTIONS for pattern in getattr(config, option)]
    is_ours = config.custom_model_provider_path is None and not config.debug_rollout_only
    if not (patterns and is_ours and (Path(config.hf_checkpoint) / "config.json").is_file()):
        return []
    try:
        family = family_of(read_hf_config(config.hf_checkpoint))
        names = possible_names(multi_token_model(family) if config.enable_mtp_training else family)
    except ModelError:  # said elsewhere
        return []
    return [
        (
            f"--{option.replace('_', '-')}",
            f"{pattern!r}: no parameter has that in its name; one is called {names[len(names) // 2]}",
        )
        for option, pattern in patterns
        if not any(re.search(pattern, name) for name in names)
    ]


def possible_names(family: Family) -> list[str]:
    """All that a parameter may have on some rank, by either layer spec.

    Pipeline stages count layers from 0, so that each kind of layer may have any number. So do ranks their experts, by
    numbers that others have, too.
    """
    of_layers = dict.fromkeys(_NUMBER.sub("", name) for name in family.tensors if _NUMBER.match(name))
    names = [name for name in family.tensors if not _NUMBER.match(name)]
    names += [f"decoder.layers.{n}{name}" for n in range(family.config["num_hidden_layers"]) for name in of_layers]
    return [other for name in names for other in names_by_either_spec(name)]
