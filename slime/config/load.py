"""From a command line and files to a Config."""

from __future__ import annotations

import difflib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from slime.config.config import PASSED_THROUGH, SECTION_OF, Config
from slime.config.errors import ConfigError, Problem
from slime.config.section import FrozenDict, flag
from slime.config.sections import SECTIONS


def load(argv: list[str]) -> Config:
    problems: list[Problem] = []
    given = _scan(argv, problems)
    values: dict[str, Any] = {}
    passed: dict[str, dict[str, Any]] = {family: {} for family in PASSED_THROUGH}
    for file in given.pop("config", []):
        _read(file, values, passed, problems)
    for name, value in given.items():
        _put(name, value, values, passed, flag(name), problems)
    sections = {}
    for title, cls in SECTIONS.items():
        try:
            sections[title] = cls.model_validate({n: values[n] for n in cls.model_fields if n in values})
        except ValidationError as error:
            problems += [Problem(flag(str(e["loc"][0])), f"{e['msg']} (got {e['input']!r})") for e in error.errors()]
    if problems:
        raise ConfigError(problems)
    flat = SimpleNamespace(**{n: v for s in sections.values() for n, v in s})
    _derive(flat)
    sections = {t: cls.model_validate({n: getattr(flat, n) for n in cls.model_fields}) for t, cls in SECTIONS.items()}
    return Config(**sections, **{f: FrozenDict(v) for f, v in passed.items()})


def _derive(o: SimpleNamespace) -> None:
    def fill(name: str, value: Any) -> None:
        if getattr(o, name) is None:
            setattr(o, name, value)

    samples = o.rollout_batch_size * o.n_samples_per_prompt
    fill("global_batch_size", samples // (o.num_steps_per_rollout or 1))
    fill("num_steps_per_rollout", samples // o.global_batch_size)
    if o.colocate:
        fill("rollout_num_gpus", o.actor_num_nodes * o.actor_num_gpus_per_node)
    fill("offload_train", o.colocate or o.offload)
    fill("offload_rollout", o.colocate or o.offload)
    fill("expert_tensor_parallel_size", o.tensor_model_parallel_size)
    fill("eps_clip_high", o.eps_clip)
    fill("rollout_function_path", f"slime.rollout.{'sft' if o.loss_type == 'sft_loss' else 'generate'}.generate_rollout")
    fill("eval_function_path", o.rollout_function_path)
    fill("eval_reward_key", o.reward_key)
    for name in ("input_key", "label_key", "tool_key"):
        fill(f"eval_{name}", getattr(o, name))
    for name in ("temperature", "top_p", "top_k", "max_response_len", "max_prompt_len", "max_context_len"):
        fill(f"eval_{name}", getattr(o, f"rollout_{name}"))
    if o.run_dir is None and o.run_name is not None:
        o.run_dir = f"runs/{o.run_name}"


def _is_switch(name: str) -> bool:
    annotation = SECTIONS[SECTION_OF[name]].model_fields[name].annotation
    return annotation is bool or bool in get_args(annotation)


def _is_list(name: str) -> bool:
    field = SECTIONS[SECTION_OF[name]].model_fields[name]
    return "tuple" in str(field.annotation)


def _scan(argv: list[str], problems: list[Problem]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    at = 0
    while at < len(argv):
        name, equals, value = argv[at].removeprefix("--").partition("=")
        at += 1
        values = [value] if equals else []
        while not equals and at < len(argv) and not argv[at].startswith("--"):
            values.append(argv[at])
            at += 1
        name = name.replace("-", "_")
        if name == "config":
            given.setdefault("config", []).extend(values)
        elif name.removeprefix("no_") in SECTION_OF and name not in SECTION_OF and not values:
            given[name.removeprefix("no_")] = False
        elif not values:
            given[name] = True
        else:
            given[name] = values[0] if len(values) == 1 and not (name in SECTION_OF and _is_list(name)) else values
    return given


def _read(file: str, values: dict, passed: dict, problems: list[Problem]) -> None:
    try:
        content = yaml.safe_load(Path(file).read_text()) or {}
    except OSError as error:
        problems.append(Problem(f"--config {file}", error.strerror or str(error)))
        return
    for name, value in content.items():
        key = name.replace("-", "_")
        if key in PASSED_THROUGH:
            passed[key].update(value or {})
        elif key in SECTIONS and isinstance(value, dict):
            for inner, v in value.items():
                _put(inner.replace("-", "_"), v, values, passed, f"{file}: {inner}", problems)
        else:
            _put(key, value, values, passed, f"{file}: {name}", problems)


def _put(name: str, value: Any, values: dict, passed: dict, where: str, problems: list[Problem]) -> None:
    if name in SECTION_OF:
        values[name] = value
        return
    for family in ("sglang", "router"):
        if name.startswith(family + "_"):
            passed[family][name.removeprefix(family + "_")] = yaml.safe_load(value) if isinstance(value, str) else value
            return
    near = difflib.get_close_matches(name, SECTION_OF, n=3)
    problems.append(Problem(where, "unknown option", f"did you mean {' or '.join(map(flag, near))}?" if near else ""))
