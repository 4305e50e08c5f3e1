"""Report: what a bench has measured, as a table for a person and as one line of JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Self

NOTE = (
    "Medians; a ratio is the median over neighbours in time, slime over bare, and so not that of the two columns: of"
    " tokens/s more is better, of ms less."
)


@dataclass(frozen=True)
class Row:
    """One quantity under both. `ratio` is ours over the bare library's."""

    name: str
    unit: str
    bare: float
    ours: float
    ratio: float
    least: float  # ratio of two neighbours
    most: float

    @classmethod
    def of_pairs(cls, name: str, unit: str, bare: Sequence[float], ours: Sequence[float]) -> Self:
        """Medians. The ratio is that of neighbours in time, so that a machine that slows down meanwhile does not
        matter."""
        ratios = [b / a for a, b in zip(bare, ours, strict=True)]
        return cls(name, unit, median(bare), median(ours), median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True)
class Report:
    """`ratio` is the bench's headline and `target` what it should reach; `setup` says what was measured."""

    bench: str
    setup: str
    rows: list[Row]
    ratio: float
    target: float

    def table(self) -> str:
        cells = [("", "bare", "slime", "ratio", "between")]
        for r in self.rows:
            spread = f"{r.least:.2f} and {r.most:.2f}"
            cells.append((f"{r.name}, {r.unit}", f"{r.bare:.1f}", f"{r.ours:.1f}", f"{r.ratio:.3f}", spread))
        widths = [max(len(row[column]) for row in cells) for column in range(5)]
        lines = [self.setup, ""]
        for first, *others in cells:
            numbers = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *numbers]))
        verdict = "reached" if self.ratio >= self.target else "missed"
        return "\n".join(
            [
                *lines,
                "",
                NOTE,
                f"{self.bench}: {self.ratio:.3f} of the bare library (target {self.target:g}: {verdict})",
            ]
        )

    def line(self) -> str:
        return json.dumps({**asdict(self), "note": NOTE})
