"""The prompts of one or more files.

Invariant: all rows are read and checked once when the set is opened, so that a bad row is an error at the start of a
run and not in the middle of it; after that a prompt is read again each time it is asked for.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slime.data.errors import DataError
from slime.data.files import PromptFile, Row, open_prompt_file, rows_of

log = logging.getLogger(__name__)

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Prompt:
    content: str | Messages
    where: str  # file:line
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Keys:
    """Which key of a row holds what. `label=None`: the prompts have no labels."""

    input: str = "input"
    label: str | None = None
    metadata: str = "metadata"
    tools: str = "tools"


class PromptSet(Sequence[Prompt]):
    def __init__(
        self,
        paths: str | Sequence[str],
        keys: Keys = Keys(),
        *,
        skip_malformed: bool = False,
        check: Callable[[Prompt], None] = lambda prompt: None,
    ):
        """Opens `paths` (see `open_prompt_file`), whose prompts follow each other.

        Raises DataError for the first row that is not sound, or what `check` raises for one. With `skip_malformed`,
        rows that are not JSON are left out and counted in `num_skipped`.
        """
        names = [paths] if isinstance(paths, str) else list(paths)
        if not names:
            raise DataError("no prompt files given")
        self._keys = keys
        self._files: list[PromptFile] = [open_prompt_file(name) for name in names]
        self._rows: list[np.ndarray] = []  # of each file: those that count
        self.num_skipped = 0
        for file in self._files:
            self._rows.append(np.array(self._sound(file, skip_malformed, check), np.int64))
        self._ends = np.cumsum([len(rows) for rows in self._rows])
        if not len(self):
            raise DataError(f"{', '.join(names)}: all {self.num_skipped} rows are malformed")

    def _sound(self, file: PromptFile, skip_malformed: bool, check: Callable[[Prompt], None]) -> list[int]:
        sound = []
        for i, row in rows_of(file):
            if isinstance(row, DataError):
                if not skip_malformed:
                    raise row
                log.warning("left out: %s", row)
                self.num_skipped += 1
            else:
                check(read_prompt(row, self._keys, file.where(i)))
                sound.append(i)
        return sound

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def sizes(self) -> list[int]:
        """How many prompts each file has."""
        return [len(rows) for rows in self._rows]

    def __getitem__(self, i: int) -> Prompt:
        if not 0 <= i < len(self):
            raise IndexError(f"prompt {i} of {len(self)}")
        which = bisect_right(self._ends, i)
        file, rows = self._files[which], self._rows[which]
        row = int(rows[i - int(self._ends[which]) + len(rows)])
        return read_prompt(file[row], self._keys, file.where(row))


def read_prompt(row: Row, keys: Keys, where: str) -> Prompt:
    """Raises DataError, naming `where`, for a row that lacks a key or holds something of the wrong kind."""
    for option, key in (("--input-key", keys.input), ("--label-key", keys.label)):
        if key is not None and row.get(key) is None:
            problem = f"{key!r} is null" if key in row else f"no key {key!r}"
            raise DataError(
                f"{where}: {problem}; the keys are {', '.join(map(repr, row))} ({option} says which to take)"
            )
    metadata = row.get(keys.metadata) or {}
    if not isinstance(metadata, dict):
        raise DataError(f"{where}: {keys.metadata!r} must be an object, not {describe(metadata)}")
    return Prompt(
        content=check_content(row[keys.input], f"{where}: {keys.input!r}"),
        where=where,
        label=None if keys.label is None else row[keys.label],
        metadata=metadata,
        tools=check_tools(row.get(keys.tools), f"{where}: {keys.tools!r}"),
    )


def check_content(content: Any, where: str) -> str | Messages:
    if isinstance(content, str):
        if not content:
            raise DataError(f"{where} is empty")
        return content
    if not isinstance(content, list):
        raise DataError(f"{where} must be a text or a list of messages, not {describe(content)}")
    if not content:
        raise DataError(f"{where} is a list without messages")
    return [check_message(message, f"{where}, message {i}") for i, message in enumerate(content)]


def check_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise DataError(f"{where} must be an object with 'role' and 'content', not {describe(message)}")
    # Parquet gives every message all keys that any message has; templates ask whether a key is there at all.
    message = {key: value for key, value in message.items() if value is not None or key == "content"}
    if not isinstance(message.get("role"), str):
        raise DataError(f"{where} has no 'role'; its keys are {', '.join(map(repr, message))}")
    if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
        raise DataError(f"{where} (role {message['role']!r}) has neither a 'content' of text or parts nor 'tool_calls'")
    return message


def check_tools(tools: Any, where: str) -> list[dict[str, Any]] | None:
    """Tool definitions are often stored as a text of JSON, since their shapes differ from row to row."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise DataError(f"{where} is a text, but not of JSON ({error})") from error
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise DataError(f"{where} must be a list of tool definitions, not {describe(tools)}")
    return tools or None


def describe(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:57] + '...'}"
