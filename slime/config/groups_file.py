"""The file of --sglang-config: what it says, and all that is wrong with its words. What the groups need of devices is
the business of group_rules.py.

    sglang:
      - name: policy                # model_path: that of --hf-checkpoint; update_weights: true
        num_gpus_per_engine: 2
        server_groups:
          - {worker_type: regular, num_gpus: 4, overrides: {mem_fraction_static: 0.8}}
      - name: judge
        model_path: models/judge    # update_weights: false, since it is not the one that is trained
        server_groups:
          - {worker_type: regular, num_gpus: 2}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from slime.config import unknown
from slime.config.catalogue import READERS, passed_through
from slime.config.errors import Problem
from slime.config.installed.source import NotInstalled

Stated = dict[str, Any]
WORKER_TYPES = ("regular", "prefill", "decode", "placeholder")
OF_THE_GROUP = {"tp_size": "num_gpus_per_engine", "model_path": "model_path", "disaggregation_mode": "worker_type"}
"""Options of SGLang that follow from a key of the file."""


def read(file: str) -> tuple[list[Stated], list[Problem]]:
    """The models as they stand in the file, and all that is wrong with them: what is wrong is left out."""
    try:
        root = yaml.compose(Path(file).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or str(error)
        return [], [Problem(f"--sglang-config {file}", what, "name a YAML file that is there")]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark else file
        return [], [Problem(place, f"is not YAML: {getattr(error, 'problem', error)}")]
    reader = _Reader(file)
    if root is None:
        return [], [Problem(f"--sglang-config {file}", "is empty", "list the models under `sglang:`")]
    content = reader.map(root, {"sglang": partial(reader.items, of=reader.model)}, required=("sglang",))
    models = content.get("sglang", [])
    names = [model["name"] for model in models if "name" in model]
    for name in sorted({name for name in names if names.count(name) > 1}):
        reader.problems.append(Problem(f"{file}: sglang", f"two models have the name {name!r}", "choose another"))
    return models, reader.problems


class _Reader:
    """Each method returns what a node says, and notes what is wrong with it; None for what says nothing of use."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.values = yaml.SafeLoader("")
        self.problems: list[Problem] = []

    def model(self, node: yaml.Node) -> Stated:
        return self.map(
            node,
            {
                "name": self.text,
                "model_path": self.text,
                "update_weights": self.switch,
                "num_gpus_per_engine": self.count,
                "server_groups": partial(self.items, of=self.group),
            },
            required=("name", "server_groups"),
        )

    def group(self, node: yaml.Node) -> Stated:
        keys = {
            "worker_type": self.worker_type,
            "num_gpus": self.count,
            "num_gpus_per_engine": self.count,
            "overrides": self.overrides,
        }
        return self.map(node, keys, required=("num_gpus",))

    def map(
        self, node: yaml.Node, readers: Mapping[str, Callable[[yaml.Node], Any]], required: tuple[str, ...]
    ) -> Stated:
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, f"is no map; it may have {', '.join(readers)}")
            return {}
        said: Stated = {}
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name not in readers:
                near = get_close_matches(name, readers, 1)
                fix = f"did you mean {near[0]}?" if near else f"there are {', '.join(readers)}"
                self._wrong(key, "unknown key", fix, name)
            elif name in seen:
                self._wrong(key, "is there twice", "keep one of them", name)
            elif (content := readers[name](value)) is not None:
                said[name] = content
            seen.add(name)
        for name in required:
            if name not in seen:
                self._wrong(node, f"lacks `{name}`")
        return said

    def items(self, node: yaml.Node, of: Callable[[yaml.Node], Any]) -> list[Any] | None:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._wrong(node, "is no list of at least one entry", "begin each entry with `- `")
            return None
        return [of(item) for item in node.value]

    def text(self, node: yaml.Node) -> str | None:
        value = self._value(node)
        if isinstance(value, str) and value:
            return value
        return self._wrong(node, f"{value!r} is no text")

    def switch(self, node: yaml.Node) -> bool | None:
        value = self._value(node)
        return value if isinstance(value, bool) else self._wrong(node, f"{value!r} is not true or false")

    def count(self, node: yaml.Node) -> int | None:
        value = self._value(node)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        return self._wrong(node, f"{value!r} is no number of devices, 1 or more")

    def worker_type(self, node: yaml.Node) -> str | None:
        value = self._value(node)
        if value in WORKER_TYPES:
            return value
        near = get_close_matches(str(value), WORKER_TYPES, 1)
        fix = f"did you mean {near[0]}?" if near else ""
        return self._wrong(node, f"worker_type {value!r} is none of {', '.join(WORKER_TYPES)}", fix)

    def overrides(self, node: yaml.Node) -> dict[str, Any] | None:
        if not isinstance(node, yaml.MappingNode):
            return self._wrong(node, "is no map of SGLang's options", "e.g. overrides: {mem_fraction_static: 0.8}")
        options = {}
        for key, value in node.value:
            name = str(key.value).replace("-", "_").removeprefix("sglang_")
            try:
                options[name] = self._override(name, value)
            except ValueError as error:
                what, fix = (*error.args, "")[:2]
                self._wrong(key, what, fix, f"overrides: {key.value}")
        return options

    def _override(self, name: str, node: yaml.Node) -> Any:
        """The typed value. Raises ValueError(what is wrong, what to do)."""
        if key := OF_THE_GROUP.get(name):
            raise ValueError("is not set here", f"it follows from the file's own `{key}`")
        if owner := READERS["sglang"].RESERVED.get(name):
            raise ValueError("is not set here", f"it follows from {owner}")
        try:
            option = passed_through("sglang").get(name)
        except NotInstalled as error:
            raise ValueError(f"cannot be checked: {error}") from None
        if option is None:
            near = [flag.removeprefix("--sglang-").replace("-", "_") for flag in unknown.nearest(f"sglang_{name}")]
            fix = f"did you mean {' or '.join(near)}?" if near else "--help sglang lists those that there are"
            raise ValueError("is no option of the installed SGLang", fix)
        return option.parse(self._value(node))

    def _value(self, node: yaml.Node) -> Any:
        try:
            return self.values.construct_object(node, deep=True)
        except yaml.YAMLError as error:
            return str(error)

    def _wrong(self, node: yaml.Node, what: str, fix: str = "", name: str = "") -> None:
        place = f"{self.file}:{node.start_mark.line + 1}"
        self.problems.append(Problem(f"{place}: {name}" if name else place, what, fix))
