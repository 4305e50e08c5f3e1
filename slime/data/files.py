"""Prompt files: rows of a JSON Lines or Parquet file, read one at a time from where they lie.

Invariants: a JSON Lines file is never in memory, only the positions of its rows are; a row always knows its line.
Nothing here knows what the keys of a row mean.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slime.data.errors import DataError

Row = dict[str, Any]
NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # control characters that neither JSON nor any text has


class PromptFile(Protocol):
    path: Path

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Row:
        """Row `i`. Raises DataError when it is malformed."""

    def where(self, i: int) -> str:
        """file:line of row `i`, as messages call it."""


def open_prompt_file(name: str) -> PromptFile:
    """Opens `path` or `path@[a:b]`, a slice of its rows as Python means it. Raises DataError when there are no rows."""
    path, rows = split_slice(name)
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if path.is_dir():
        raise DataError(f"{path}: is a directory; give the prompt files in it one by one")
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(
            f"{path}: prompt files are .jsonl (one JSON object a line) or .parquet, not {path.suffix or 'this'}"
        )
    try:
        file = JsonLines(path, rows) if path.suffix == ".jsonl" else Parquet(path, rows)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not len(file):
        what = "the file has no rows" if rows == slice(None) else "the slice selects no rows"
        raise DataError(f"{name}: {what}")
    return file


def split_slice(name: str) -> tuple[Path, slice]:
    """`file@[a:b]` -> file and slice; a or b may be negative or left out."""
    match = re.fullmatch(r"(.+)@\[([^\[\]]*)\]", name)
    if match is None:
        return Path(name), slice(None)
    bounds = re.fullmatch(r"\s*([+-]?\d+)?\s*:\s*([+-]?\d+)?\s*", match[2])
    if bounds is None:
        raise DataError(
            f"{name}: [{match[2]}] is not a slice of the form [a:b], with whole numbers or nothing for a and b"
        )
    first, last = (None if bound is None else int(bound) for bound in bounds.groups())
    return Path(match[1]), slice(first, last)


class JsonLines:
    def __init__(self, path: Path, rows: slice = slice(None)):
        self.path = path
        self._file = path.open("rb")
        start, starts, lengths, numbers = 0, array("q"), array("q"), array("q")
        for number, line in enumerate(self._file, 1):
            if not line.isspace():
                starts.append(start)
                lengths.append(len(line))
                numbers.append(number)
            start += len(line)
        self._starts, self._lengths, self._numbers = (
            np.array(values, np.int64)[rows] for values in (starts, lengths, numbers)
        )

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, i: int) -> Row:
        start = int(self._starts[i])
        line = os.pread(self._file.fileno(), int(self._lengths[i]), start)
        try:
            text = line.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            where = f"byte {start + error.start:,} is 0x{line[error.start]:02x}"
            raise DataError(f"{self.where(i)}: not text in UTF-8 ({where})") from error
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:  # the latter where it is nested too deep
            if control := NO_TEXT.search(text):
                where = f"byte {start + line.index(control[0].encode()):,} is 0x{ord(control[0]):02x}"
                raise DataError(f"{self.where(i)}: not text ({where})") from error
            raise DataError(f"{self.where(i)}: not valid JSON ({error}): {text[:80].strip()}") from error
        if not isinstance(row, dict):
            raise DataError(f"{self.where(i)}: a line must be a JSON object, not {type(row).__name__}")
        return row

    def where(self, i: int) -> str:
        return f"{self.path}:{self._numbers[i]}"


class Parquet:
    """Kept as Arrow columns; a row becomes Python objects when it is asked for."""

    def __init__(self, path: Path, rows: slice = slice(None)):
        import pyarrow
        import pyarrow.parquet

        self.path = path
        try:
            table = pyarrow.parquet.read_table(path)
        except pyarrow.ArrowException as error:
            raise DataError(f"{path}: not a Parquet file: {error}") from error
        self._first, last, _ = rows.indices(len(table))
        self._table = table.slice(self._first, max(0, last - self._first))

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, i: int) -> Row:
        return self._table.slice(i, 1).to_pylist()[0]

    def where(self, i: int) -> str:
        return f"{self.path}: row {self._first + i}"


def rows_of(file: PromptFile) -> Iterator[tuple[int, Row | DataError]]:
    """All rows in turn; a malformed one as the error that it is."""
    for i in range(len(file)):
        try:
            yield i, file[i]
        except DataError as error:
            yield i, error
