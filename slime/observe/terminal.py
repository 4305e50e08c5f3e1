"""What a stream can show, and the small pictures drawn in it.

Invariants: a stream that is not a terminal never gets a control character; colour needs a terminal and no NO_COLOR;
block characters need an encoding that has them, everything has an ASCII form. Text from a model or a data set goes
through `clean` before it is printed: it may hold escape sequences.
"""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TextIO

DEFAULT_WIDTH = 80
EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = ".:-=+*#@"
COLORS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_ASCII = str.maketrans(
    {"…": "~", "·": "|", "–": "-", "─": "-", "✓": "+", "✗": "x", "⏎": " ", "Δ": "d", "×": "x", "→": ">"}
)


class Terminal:
    """A stream and what it can show: `live` (the cursor can go back), `color`, `unicode`, `width` in columns."""

    def __init__(self, stream: TextIO, env: Mapping[str, str] = os.environ) -> None:
        self.stream = stream
        self._columns = env.get("COLUMNS", "")
        self.live = stream.isatty() and env.get("TERM") != "dumb"
        self.color = self.live and not env.get("NO_COLOR")
        self.unicode = _encodes(stream, EIGHTHS + LEVELS)

    @property
    def width(self) -> int:
        """Read each time: a terminal is resized while a run goes on."""
        if self._columns.isdigit() and int(self._columns) > 0:
            return int(self._columns)
        if self.live:
            return os.get_terminal_size(self.stream.fileno()).columns or DEFAULT_WIDTH
        return DEFAULT_WIDTH

    def paint(self, text: str, *colors: str) -> str:
        return f"\x1b[{';'.join(COLORS[c] for c in colors)}m{text}\x1b[0m" if self.color and text.strip() else text

    def plain(self, text: str) -> str:
        """`text` in characters that the stream can encode."""
        if self.unicode:
            return text
        encoding = self.stream.encoding or "ascii"
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)

    def bar(self, share: float, cells: int) -> str:
        """A bar of `share` (0 to 1) of `cells` columns, padded to `cells`; blank where the share is not a share."""
        if not 0 <= share <= 1:
            return " " * cells
        full, eighths = divmod(round(share * cells * 8), 8)
        text = "█" * full + (EIGHTHS[eighths] if eighths else "") if self.unicode else "#" * round(share * cells)
        return text.ljust(cells)

    def sparkline(self, values: Sequence[float], cells: int, *, shares: bool = False) -> str:
        """`values` in at most `cells` columns, each column the mean of its part; gaps where nothing is finite.

        The scale is from smallest to largest; for `shares` that are all between 0 and 1 it is from 0 to 1.
        """
        columns = [mean(part) for part in _parts(values, cells)]
        finite = [v for v in columns if math.isfinite(v)]
        if not finite:
            return ""
        low, high = (0.0, 1.0) if shares and 0 <= min(finite) and max(finite) <= 1 else (min(finite), max(finite))
        levels = LEVELS if self.unicode else ASCII_LEVELS
        half = high / 2 - low / 2  # halves, since the difference of two floats may be too large for one

        def level(value: float) -> str:
            return levels[round((value / 2 - low / 2) / half * (len(levels) - 1)) if half else 0]

        return "".join(level(value) if math.isfinite(value) else " " for value in columns)


def mean(values: Iterable[float]) -> float:
    """The mean of what is finite; NaN if nothing is."""
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.nan


def seconds(value: float) -> str:
    """A duration as a person says it: 0.4 s, 17 s, 3 min 20 s, 2 h 03 min."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clean(text: str) -> str:
    """`text` on one line with nothing in it that a terminal would act on."""
    text = text.strip().replace("\r\n", "\n").replace("\n", "⏎")
    return "".join(c if unicodedata.category(c)[0] != "C" else " " if c == "\t" else "·" for c in text)


def columns_of(text: str) -> int:
    """How many terminal columns `text` takes: East Asian wide characters take two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, columns: int) -> str:
    """`text` in at most `columns` columns; the middle goes first, the end of an answer matters most."""
    if columns_of(text) <= columns:
        return text
    head = _prefix(text, (columns - 1) // 2)
    tail = _prefix(text[::-1], columns - 1 - columns_of(head))[::-1]
    return f"{head}…{tail}"


def _prefix(text: str, columns: int) -> str:
    used = 0
    for i, character in enumerate(text):
        used += columns_of(character)
        if used > columns:
            return text[:i]
    return text


def _parts(values: Sequence[float], count: int) -> list[Sequence[float]]:
    count = min(count, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else [0]
    return [values[a:b] for a, b in pairwise(edges)]


def _encodes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
