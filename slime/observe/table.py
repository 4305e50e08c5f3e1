"""StepTable: the lines of the steps, aligned, under a header that comes again when it has scrolled away.

Invariants: every line fits the terminal; a metric that is not there is a dash, not an error; the numbers of one column
line up whatever their size. The bar beside a reward is its share of 1, so that the lines together draw the learning
curve; beside a loss it is the share of the first loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slime.observe import names
from slime.observe.terminal import Terminal, columns_of, shorten

ROWS_A_HEADER = 20
BAR = "bar"
MISSING = "–"

Cell = Callable[[Mapping[str, float], int], str]  # metrics and the column's width


@dataclass(frozen=True)
class Column:
    group: str  # the upper line of the header, over all neighbours that share it
    title: str
    width: int
    cell: Cell
    rank: int  # where there is no room, the column of the highest rank goes first


def _number(name: str, decimals: int) -> Cell:
    """Fixed decimals, fewer where the number is too long for its column, an exponent where even that is."""

    def cell(metrics: Mapping[str, float], width: int) -> str:
        value = metrics.get(name)
        if value is None:
            return MISSING
        if not math.isfinite(value):
            return str(float(value))
        texts = [f"{value:.{d}f}" for d in range(decimals, -1, -1)]
        return next((text for text in texts if len(text) <= width), f"{value:.0e}")

    return cell


def _exponent(*names: str) -> Cell:
    """The first of `names` that is there, as 1.2e-05."""

    def cell(metrics: Mapping[str, float], width: int) -> str:
        value = next((metrics[name] for name in names if name in metrics), None)
        return MISSING if value is None else f"{value:.1e}"

    return cell


def _no_cell(metrics: Mapping[str, float], width: int) -> str:
    return ""


REWARD, LOSS = "rollout/raw_reward", "train/loss"
STEP = Column("", "step", 5, _number("step", 0), 0)
RL = (
    STEP,
    Column("", "reward", 6, _number(REWARD, 3), 0),
    Column("", BAR, 10, _no_cell, 5),
    Column("response", "length", 8, _number("rollout/response_len/mean", 1), 3),
    Column("slowest", "tok/s", 7, _number("perf/longest_sample_tokens_per_sec", 0), 2),
    Column("seconds", "rollout", 7, _number("perf/rollout_time", 2), 1),
    Column("seconds", "train", 6, _number("perf/train_time", 2), 1),
    Column("seconds", "sync", 6, _number("perf/update_weights_time", 2), 1),
    Column("seconds", "step", 6, _number("perf/step_time", 2), 4),
    Column("log-prob", "diff", 8, _exponent(f"{names.LOGPROB_DIFF}_max", names.LOGPROB_DIFF), 2),
)
SFT = (
    STEP,
    Column("", "loss", 7, _number(LOSS, 4), 0),
    Column("", BAR, 10, _no_cell, 5),
    Column("learning", "rate", 8, _exponent("train/lr-pg_0"), 2),
    Column("gradient", "norm", 8, _number("train/grad_norm", 3), 3),
    Column("", "tok/s", 7, _number("perf/actor_train_tok_per_s", 0), 1),
    Column("seconds", "train", 7, _number("perf/train_time", 2), 4),
)


def is_rl(metrics: Mapping[str, float]) -> bool:
    """Supervised training has a loss but no advantages, and rewards that mean nothing if any."""
    return REWARD in metrics and ("rollout/advantages" in metrics or LOSS not in metrics)


class StepTable:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._layout: tuple[Column, ...] | None = None  # of the header that is in view
        self._rows = 0  # lines under that header
        self._first_loss: float | None = None

    def scroll(self, lines: int) -> None:
        """Something else was printed, which moves the header up."""
        self._rows += lines

    def row(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """The line of a step, with a header above it where one is due."""
        rl = is_rl(metrics)
        layout = _fit(RL if rl else SFT, self._terminal.width)
        lines = self._header(layout)
        cells = [column.cell({**metrics, "step": step}, column.width).rjust(column.width) for column in layout]
        for i, column in enumerate(layout):
            if column.title == BAR:
                bar = self._terminal.bar(metrics[REWARD] if rl else self._share_of_loss(metrics), column.width)
                cells[i] = self._terminal.paint(bar, "green" if rl else "blue")
            elif "nan" in cells[i] or "inf" in cells[i]:
                cells[i] = self._terminal.paint(cells[i], "red", "bold")
        return [*lines, " ".join(cells).rstrip()]

    def eval_rows(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """A line for each held-out set: its accuracy in the column of the rewards."""
        layout = _fit(RL, self._terminal.width)
        lines = self._header(layout)
        for name, value in metrics.items():
            if (dataset := names.eval_set(name)) is None:
                continue
            cells = [f"{step:5d}", _number(name, 3)(metrics, 6).rjust(6)]
            if bar := next((column for column in layout if column.title == BAR), None):
                cells.append(self._terminal.paint(self._terminal.bar(value, bar.width), "cyan"))
            line = " ".join(cells)
            room = self._terminal.width - 1 - _width(layout[: len(cells)])
            said = shorten(f"  held out: {dataset}", room)
            for detail in _details(metrics, name):  # as many as there is room for
                said += detail if columns_of(said + detail) <= room else ""
            lines.append(line + said)
        return lines

    def _header(self, layout: tuple[Column, ...]) -> list[str]:
        if layout == self._layout and self._rows < ROWS_A_HEADER:
            self._rows += 1
            return []
        self._layout, self._rows = layout, 1
        titles = " ".join("".rjust(c.width) if c.title == BAR else c.title.rjust(c.width) for c in layout)
        return ["", *(self._terminal.paint(line.rstrip(), "dim") for line in (_groups(layout), titles))]

    def _share_of_loss(self, metrics: Mapping[str, float]) -> float:
        loss = metrics.get(LOSS, math.nan)
        if self._first_loss is None and math.isfinite(loss):
            self._first_loss = loss
        return min(1.0, loss / self._first_loss) if self._first_loss else math.nan


def _fit(columns: tuple[Column, ...], width: int) -> tuple[Column, ...]:
    """The columns that there is room for; what a wide terminal has over goes to the bar."""
    while _width(columns) >= width and len(columns) > 2:
        highest = max(column.rank for column in columns)
        columns = tuple(column for column in columns if column.rank != highest)
    spare = min(20, max(0, width - 1 - _width(columns)))
    return tuple(Column(c.group, c.title, c.width + spare, c.cell, c.rank) if c.title == BAR else c for c in columns)


def _width(columns: tuple[Column, ...]) -> int:
    return sum(column.width + 1 for column in columns) - 1


def _groups(layout: tuple[Column, ...]) -> str:
    """The upper line of the header: a title for one column, a rule with the title in it over several."""
    parts: list[str] = []
    i = 0
    while i < len(layout):
        same = [c for c in layout[i:] if c.group == layout[i].group] if layout[i].group else [layout[i]]
        width = _width(tuple(same))
        parts.append(
            layout[i].group.rjust(width)
            if len(same) == 1
            else f" {layout[i].group} ".center(width - 2, "─").rjust(width)
        )
        i += len(same)
    return " ".join(parts)


def _details(metrics: Mapping[str, float], name: str) -> list[str]:
    """What else is known of a held-out set, the most interesting first."""
    details = []
    if (thinking := metrics.get(f"{name}/thinking_ratio")) is not None:
        details.append(f" · thinking {thinking:.0%}")
    details += [
        f" · {other[len(name) + 1 :]} {value:.3f}"
        for other, value in metrics.items()
        if other.startswith(f"{name}-pass@")
    ]
    if (length := metrics.get(f"{name}/response_len/mean")) is not None:
        details.append(f" · length {length:.1f}")
    return details
