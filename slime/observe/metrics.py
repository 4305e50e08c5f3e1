"""Metrics: one line of metrics.jsonl a call, and the same numbers to the trackers that were asked for.

Invariants: a line is in the file when `log` returns, also if the process is killed next; a tracker that fails is
counted and said once, and never stops a run; every number is logged under a name of names.py or under a prefix of the
user's own. NaN and infinities are kept: as the strings "NaN", "Infinity" and "-Infinity" in the file, which JSON has no
numbers for.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slime.observe import names
from slime.observe.run_dir import LineFile, RunDir
from slime.observe.trackers import Tracker

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class MetricsError(ValueError):
    """A metrics.jsonl that cannot be read; the message names file and line."""


class Metrics:
    """Writes what a run measures. `warn` says what should not stop a run: a tracker that fails, a name nobody has
    documented.

    It says each of them once; the default makes them Python warnings, which tests turn into errors.
    """

    def __init__(
        self, run: RunDir, trackers: Sequence[Tracker] = (), *, warn: Callable[[str], None] = warnings.warn
    ) -> None:
        self._file = LineFile(run.metrics_file)
        self._trackers = trackers
        self._warn = warn
        self._warned: set[str] = set()
        self.failures = {tracker.name: 0 for tracker in trackers}  # calls of `log` that a tracker lost

    def log(self, metrics: Mapping[str, Any], *, step: int) -> None:
        """Writes one row. `step` counts on the axis of each name: train/* optimizer steps, eval/* evaluations, the rest
        rollouts.

        Values are numbers: int, float, bool, or a scalar of NumPy or torch. A value of another kind is left out and
        said once.
        """
        numbers = {name: number for name, value in metrics.items() if (number := self._number(name, value)) is not None}
        axes = names.axes(numbers)
        for name in numbers:
            if name in axes and numbers[name] != step:
                self._warn_once(
                    name, f"{name} is {numbers[name]} among the metrics of a row at step {step}: {step} is kept"
                )
            if names.is_ours(name) and names.find(name) is None:
                self._warn_once(name, f"the metric {name} is not in docs/metrics.md: add it to slime/observe/names.py")
        row = {"time": round(time.time(), 3)} | numbers | dict.fromkeys(axes, step)
        self._file.append(json.dumps({name: _jsonable(value) for name, value in row.items()}, allow_nan=False))
        for tracker in self._trackers:
            try:
                tracker.log(numbers, step=step, axes=axes)
            except (
                Exception
            ) as e:  # a tracker is code of others that talks to a network; a run of days outlives its failures
                self.failures[tracker.name] += 1
                self._warn_once(
                    tracker.name,
                    f"{tracker.name} failed at step {step}; the run goes on, and metrics.jsonl has everything: "
                    f"{type(e).__name__}: {e}",
                )

    def close(self) -> None:
        """Ends the trackers, each of which may wait for its network, and says what they lost."""
        self._file.close()
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as e:  # as in `log`: the run is over and its numbers are in the file
                self._warn(f"{tracker.name} failed while closing: {type(e).__name__}: {e}")
            if lost := self.failures[tracker.name]:
                self._warn(f"{tracker.name} lost {lost} rows; metrics.jsonl has them")

    def _number(self, name: str, value: Any) -> float | int | None:
        value = _scalar(value)
        if isinstance(value, (int, float)):
            return value + 0  # True counts as 1
        self._warn_once(
            name, f"the metric {name} is left out: a number is needed, this is a {type(value).__name__}: {value!r:.80}"
        )
        return None

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            self._warn(message)


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """Every row of a metrics.jsonl, or of the one in a run directory, in the order of writing.

    Half a last line, which a killed run leaves, is passed over. Raises MetricsError for any other line that is not a
    row.
    """
    path = Path(path)
    file = path / "metrics.jsonl" if path.is_dir() else path
    lines = file.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is nothing, or half a line
        try:
            row = json.loads(line)
            rows.append({name: _NOT_FINITE[value] if isinstance(value, str) else value for name, value in row.items()})
        except (ValueError, KeyError, AttributeError) as e:
            raise MetricsError(f"{file}:{number}: not a row of metrics: {line[:80]!r}") from e
    return rows


def _scalar(value: Any) -> Any:
    """The Python number in a NumPy or torch scalar; anything else as it is."""
    if not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (ValueError, RuntimeError, TypeError):  # more than one element
        return value


def _jsonable(value: float) -> float | str:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
