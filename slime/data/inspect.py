"""Whether the prompt files of a run can be used, before anything is started."""

from __future__ import annotations

from typing import Any

from slime.data.errors import DataError
from slime.data.eval_sets import eval_sets
from slime.data.prompts import Keys, PromptSet


def unusable_prompts(config: Any) -> list[tuple[str, str]]:
    """(option, what is wrong), one for each set of prompt files; the first unsound row of a set stands for all of its rows."""
    problems = []
    if config.prompt_data and config.data_source_path is None:
        keys = Keys(config.input_key, config.label_key, config.metadata_key, config.tool_key)
        try:
            PromptSet(config.prompt_data, keys, skip_malformed=config.skip_malformed_prompts)
        except DataError as error:
            problems.append(("--prompt-data", str(error)))
    try:
        sets = eval_sets(config) if config.eval_interval is not None else []
    except DataError as error:
        return [*problems, ("--eval-prompt-data or --eval-config", str(error))]
    for one in sets:
        try:
            PromptSet(one.path, Keys(one.input_key, one.label_key, one.metadata_key, one.tool_key))
        except DataError as error:
            problems.append((f"eval set {one.name}", str(error)))
    return problems
