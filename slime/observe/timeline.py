"""Timeline: what ran when, as timeline.json in the trace-event format; drag it into ui.perfetto.dev.

Invariants: one process writes (the driver); times are wall-clock, so that spans measured by another process line up;
the file is a complete JSON array after every event, also when the run is killed. A span is written when it begins and
when it ends: in the file of a killed run, what it was doing is the span without an end. Each name has a row of its own
in its process, so spans of different names may overlap, as rollout and train do in an asynchronous run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slime.observe.run_dir import LineFile, RunDir


class Timeline:
    def __init__(self, run: RunDir) -> None:
        self._file = LineFile(run.timeline_file, tail="]\n")
        self._processes: dict[str, int] = {}
        self._rows: dict[tuple[str, str], int] = {}
        if run.timeline_file.stat().st_size == 0:
            self._file.append("[")
            self._comma = ""
        else:
            self._comma = ","
        self._row("driver", "run")

    @contextmanager
    def span(self, name: str, *, process: str = "driver", **args: Any) -> Iterator[None]:
        """Times the block. `args` (rollout_id=3) are shown with the span; an exception leaves its type there."""
        row = self._row(process, name)
        self._event(ph="B", name=name, ts=_microseconds(time.time()), **row, args=args)
        error = {}
        try:
            yield
        except BaseException as e:
            error = {"error": type(e).__name__}
            raise
        finally:
            self._event(ph="E", name=name, ts=_microseconds(time.time()), **row, args=error)

    def add(self, name: str, start: float, end: float, *, process: str = "driver", **args: Any) -> None:
        """A span that was measured elsewhere; `start` and `end` are seconds as time.time() gives them."""
        start_us, end_us = _microseconds(start), _microseconds(end)
        self._event(ph="X", name=name, ts=start_us, dur=end_us - start_us, **self._row(process, name), args=args)

    def close(self) -> None:
        self._file.close()

    def _row(self, process: str, name: str) -> dict[str, int]:
        """The numbers (pid, tid) of a row; the first use of a process or row gives it its name."""
        if process not in self._processes:
            self._processes[process] = len(self._processes)
            self._event(ph="M", name="process_name", pid=self._processes[process], tid=0, args={"name": process})
        pid = self._processes[process]
        if (process, name) not in self._rows:
            self._rows[process, name] = len(self._rows)
            self._event(ph="M", name="thread_name", pid=pid, tid=self._rows[process, name], args={"name": name})
        return {"pid": pid, "tid": self._rows[process, name]}

    def _event(self, **event: Any) -> None:
        self._file.append(self._comma + json.dumps(event, separators=(",", ":"), default=str))
        self._comma = ","


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
