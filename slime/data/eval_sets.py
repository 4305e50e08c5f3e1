"""Evaluation sets: which prompts, how many samples of each, sampled and graded how.

Invariants: every field of an EvalSet has its final value, so that nobody looks up defaults later; names are unique.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from slime.config.section import TopK
from slime.config.sections.rollout import RmType
from slime.data.encode import PromptEncoder
from slime.data.errors import DataError
from slime.data.prompts import Keys, PromptSet
from slime.data.source import Group, make_group
from slime.data.template import ChatTemplate
from slime.data.tokenizer import Tokenizer

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Fields are named as the options without `eval_`; in a YAML of --eval-config, too."""

    name: str
    path: str
    n_samples_per_eval_prompt: Count
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: TopK
    max_prompt_len: Count | None
    max_response_len: Count | None
    max_context_len: Count | None
    min_new_tokens: Count | None
    input_key: str
    label_key: str | None
    tool_key: str
    metadata_key: str
    rm_type: RmType | None
    reward_key: str | None


class EvalPrompts:
    """The prompts of one set, encoded once for all evaluations."""

    def __init__(self, eval_set: EvalSet, tokenizer: Tokenizer, template: ChatTemplate | None):
        """Raises DataError for unsound files, and when all prompts are longer than the set's `max_prompt_len`."""
        self.eval_set = eval_set
        keys = Keys(eval_set.input_key, eval_set.label_key, eval_set.metadata_key, eval_set.tool_key)
        prompts = list(PromptSet(eval_set.path, keys))
        encoded = PromptEncoder(tokenizer, template).encode(prompts)
        limit = eval_set.max_prompt_len
        self._prompts = [
            pair for pair in zip(prompts, encoded, strict=True) if limit is None or len(pair[1].tokens) <= limit
        ]
        self.num_too_long = len(prompts) - len(self._prompts)
        if not self._prompts:
            raise DataError(
                f"eval set {eval_set.name}: all {len(prompts)} prompts are longer than max_prompt_len {limit}"
            )

    def __len__(self) -> int:
        return len(self._prompts)

    def groups(self) -> list[Group]:
        """New samples for one evaluation, in the order of the file. A `rm_type` of the set is in their metadata."""
        n = self.eval_set.n_samples_per_eval_prompt
        groups = [make_group(prompt, encoded, i, i * n, n) for i, (prompt, encoded) in enumerate(self._prompts)]
        if self.eval_set.rm_type is not None:
            for sample in (sample for group in groups for sample in group):
                sample.metadata.setdefault("rm_type", self.eval_set.rm_type)
        return groups


def eval_sets(config: Any) -> list[EvalSet]:
    """Of --eval-prompt-data, pairs of name and path, and --eval-config, a YAML. Raises DataError with all that is wrong
    in the YAML."""
    defaults = {
        "n_samples_per_eval_prompt": config.n_samples_per_eval_prompt,
        "temperature": config.eval_temperature,
        "top_p": config.eval_top_p,
        "top_k": config.eval_top_k,
        "max_prompt_len": config.eval_max_prompt_len,
        "max_response_len": config.eval_max_response_len,
        "max_context_len": config.eval_max_context_len,
        "min_new_tokens": config.eval_min_new_tokens,
        "input_key": config.eval_input_key,
        "label_key": config.eval_label_key,
        "tool_key": config.eval_tool_key,
        "metadata_key": config.metadata_key,
        "rm_type": None,
        "reward_key": config.eval_reward_key,
    }
    pairs = config.eval_prompt_data
    if len(pairs) % 2:
        raise DataError(f"--eval-prompt-data takes pairs of name and path; {pairs[-1]!r} has no partner")
    sets = [EvalSet(name=name, path=path, **defaults) for name, path in zip(pairs[::2], pairs[1::2], strict=True)]
    if config.eval_config is not None:
        sets += read_eval_config(Path(config.eval_config), defaults)
    names = [one.name for one in sets]
    if twice := {name for name in names if names.count(name) > 1}:
        raise DataError(f"eval sets must have different names; there is more than one {', '.join(sorted(twice))}")
    return sets


def read_eval_config(file: Path, defaults: Mapping[str, Any]) -> list[EvalSet]:
    """`{defaults: {...}, datasets: [{name, path, ...}]}`, also below a key `eval`."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--eval-config {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"--eval-config {file}: not text in UTF-8 (byte {error.start + 1})") from error
    except yaml.YAMLError as error:
        raise DataError(f"--eval-config {file}: not valid YAML: {error}") from error
    if isinstance(content, dict) and set(content) == {"eval"}:
        content = content["eval"]
    if not isinstance(content, dict) or not isinstance(content.get("datasets"), list) or not content["datasets"]:
        raise DataError(f"--eval-config {file}: needs a list `datasets` of entries with `name` and `path`")
    problems = unknown_keys(content, {"defaults", "datasets"}, str(file))
    shared = content.get("defaults") or {}
    sets = []
    for i, entry in enumerate([shared, *content["datasets"]]):
        where = f"{file}, datasets[{i - 1}]" if i else f"{file}, defaults"
        if not isinstance(entry, dict):
            problems.append(f"{where}: must be a mapping, not {entry!r}")
            continue
        problems += unknown_keys(entry, {field.name for field in fields(EvalSet)}, where)
        if i and isinstance(shared, dict):
            try:
                sets.append(TypeAdapter(EvalSet).validate_python({**defaults, **shared, **entry}))
            except ValidationError as error:
                problems += [f"{where}: {e['loc'][-1]}: {e['msg']} (got {e['input']!r})" for e in error.errors()]
    if problems:
        raise DataError("--eval-config is not sound:\n  " + "\n  ".join(problems))
    return sets


def unknown_keys(given: Mapping[Any, Any], known: set[str], where: str) -> list[str]:
    problems = []
    for key in set(map(str, given)) - known:
        nearest = difflib.get_close_matches(key, known, n=1)
        problems.append(f"{where}: there is no {key!r}" + (f", did you mean {nearest[0]!r}?" if nearest else ""))
    return sorted(problems)
