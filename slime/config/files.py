"""Reading options from YAML, each with the line it stands on.

A file maps option names, with - or _, to values; or section names, or sglang, router, megatron, to such maps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from slime.config.catalogue import READERS, SECTION_OF
from slime.config.command_line import Given
from slime.config.errors import Problem
from slime.config.sections import SECTIONS


class Unusable(ValueError):
    """A file that gives no options at all. `problem` says why."""

    def __init__(self, where: str, what: str, fix: str = ""):
        self.problem = Problem(where, what, fix)
        super().__init__(str(self.problem))


Map = yaml.MappingNode


def read(file: str) -> tuple[list[Given], list[Problem]]:
    """The options of a file, in its order, and what is wrong with some of them. Raises Unusable."""
    return options(file, compose(file, "--config"))


def options(file: str, node: Map) -> tuple[list[Given], list[Problem]]:
    """The same of a map in a file."""
    return _Reader(file).read(node)


def compose(file: str, option: str) -> Map:
    """The map that a file consists of, which `option` names, with the lines of its keys. Raises Unusable."""
    where = f"{option} {file}"
    try:
        text = Path(file).read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise Unusable(where, error.strerror or str(error), "name a file that is there") from None
    except UnicodeDecodeError as error:
        raise Unusable(where, f"is not a text file: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark else file
        raise Unusable(place, f"is not YAML: {getattr(error, 'problem', error)}") from None
    if root is None:
        raise Unusable(where, "is empty", "give at least one `option: value`")
    if not isinstance(root, Map):
        raise Unusable(f"{file}:{root.start_mark.line + 1}", "is not a map of `option: value`")
    return root


class _Reader:
    def __init__(self, file: str):
        self.file = file
        self.values = yaml.SafeLoader("")
        self.given: list[Given] = []
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}

    def read(self, root: Map) -> tuple[list[Given], list[Problem]]:
        for key, node in root.value:
            name = _name(key)
            if name in SECTIONS or name in READERS:
                self._section(name, key, node)
            else:
                self._option(name, key, node)
        return self.given, self.problems

    def _section(self, section: str, key: yaml.Node, node: yaml.Node) -> None:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(node, Map):
            self.problems.append(Problem(self._where(key), "is a section: options follow it, indented"))
            return
        for inner, value in node.value:
            name = _name(inner)
            home = SECTION_OF.get(name)
            if section in SECTIONS and home not in (None, section):
                self.problems.append(
                    Problem(self._where(inner), f"is an option of {home}, not of {section}", f"move it to `{home}:`")
                )
            else:
                self._option(f"{section}_{name}" if section in ("sglang", "router") else name, inner, value)

    def _option(self, name: str, key: yaml.Node, node: yaml.Node) -> None:
        line = key.start_mark.line + 1
        if name in self.lines:
            self.problems.append(Problem(self._where(key), f"is also in line {self.lines[name]}", "keep one of them"))
            return
        self.lines[name] = line
        try:
            value: Any = self.values.construct_object(node, deep=True)
        except yaml.YAMLError as error:
            self.problems.append(
                Problem(self._where(key), f"its value is not readable: {getattr(error, 'problem', error)}")
            )
            return
        self.given.append(Given(name, value, self._where(key)))

    def _where(self, key: yaml.Node) -> str:
        return f"{self.file}:{key.start_mark.line + 1}: {key.value}"


def _name(key: yaml.Node) -> str:
    return str(key.value).replace("-", "_")
