"""Console: what a person sees while a run goes on.

    with console.phase("starting 1 engine"):     ✓ starting 1 engine ... 17 s
        ...
    console.step(12, metrics)                    one aligned line a step
    console.eval(20, metrics)                    one a held-out set, in the same columns

Invariants: on a terminal a line at the bottom tells what is going on, redrawn a few times a second and gone when it is
over; elsewhere (a file, a pipe, TERM=dumb) only whole, plain lines are written: of a phase one, when it is over, one
before if it is not over at once, and now and then that it goes on. The thread that does this lives only as long as its
phase.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

from slime.observe.table import StepTable, is_rl
from slime.observe.terminal import Terminal, clean, seconds, shorten

TICK_S = 0.2
SAY_AFTER_S = 1.0  # without a terminal: a phase that is not over by then says what it is
SAY_EVERY_S = 60.0  # and as often as this that it goes on
ROW_EVERY_S = 1.0  # supervised steps are fast and many; a step of reinforcement learning always has its line
SPINNER, ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"


class Console:
    def __init__(self, stream: TextIO | None = None) -> None:
        self.terminal = Terminal(stream or sys.stdout)
        self._table = StepTable(self.terminal)
        self._lock = threading.RLock()  # between the main thread and that of a phase
        self._phases: list[Phase] = []
        self._held: tuple[int, Mapping[str, float]] | None = None  # the latest step without a line of its own
        self._last_row = -ROW_EVERY_S

    def say(self, text: str) -> None:
        """Prints `text`, on a line of its own or several."""
        with self._lock:
            self._release()
            self._table.scroll(text.count("\n") + 1)
            self._write(text)

    def warn(self, text: str) -> None:
        """Says what should be read but does not stop the run."""
        self.say(self.terminal.paint("warning:", "yellow", "bold") + " " + text)

    def phase(self, text: str, *, brief: bool = False) -> Phase:
        """Used as `with console.phase("starting 1 engine"):`, shows how long it takes. A `brief` one leaves no line."""
        return Phase(self, clean(text), brief)

    def note(self, text: str) -> None:
        """Says how far the innermost phase is, if there is one."""
        with self._lock:
            if self._phases:
                self._phases[-1].note(text)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """The line of a step. `metrics` are those of rollout, time and training in one, named as in docs/metrics.md."""
        with self._lock:
            self._held = None
            if is_rl(metrics) or time.monotonic() - self._last_row >= ROW_EVERY_S:
                self._row(step, metrics)
            else:
                self._held = step, metrics

    def eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """The lines of the held-out sets in `metrics` (eval/*), after `step` steps."""
        with self._lock:
            self._release()
            self._write(*self._table.eval_rows(step, metrics))

    def close(self) -> None:
        """Prints the last step, if it has had no line yet."""
        with self._lock:
            self._release()

    def _row(self, step: int, metrics: Mapping[str, float]) -> None:
        self._last_row = time.monotonic()
        self._write(*self._table.row(step, metrics))

    def _release(self) -> None:
        if self._held:
            held, self._held = self._held, None
            self._row(*held)

    def _write(self, *lines: str) -> None:
        self._erase()
        self.terminal.stream.write("".join(self.terminal.plain(line) + "\n" for line in lines))
        self._draw()
        self.terminal.stream.flush()

    def _draw(self) -> None:
        """The line at the bottom: the innermost phase."""
        if self.terminal.live and self._phases:
            line = shorten(self._phases[-1].status(), self.terminal.width - 1)
            self.terminal.stream.write(self.terminal.paint(self.terminal.plain(line), "dim"))
            self.terminal.stream.flush()

    def _erase(self) -> None:
        if self.terminal.live:
            self.terminal.stream.write("\r\x1b[2K")


class Phase:
    """Something that takes a while. Made by `Console.phase`; `note` tells how far it is."""

    def __init__(self, console: Console, text: str, brief: bool) -> None:
        self._console = console
        self._text = text
        self._brief = brief
        self._note = ""
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._tick if console.terminal.live else self._announce, daemon=True)

    def note(self, text: str) -> None:
        """Shown beside the elapsed time, as in "300 of 900 steps"."""
        self._note = clean(text)

    def __enter__(self) -> Phase:
        self._start = time.monotonic()
        with self._console._lock:
            if not self._brief:
                self._console._release()
            self._console._phases.append(self)
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        terminal = self._console.terminal
        with self._console._lock:
            self._console._phases.remove(self)
            if self._brief and kind is None:
                self._console._write()
            else:
                how = "" if kind is None else "failed after " if issubclass(kind, Exception) else "interrupted after "
                mark = terminal.paint("✓ ", "green") if kind is None else terminal.paint("✗ ", "red")
                text = f"{self._text} {terminal.paint('...', 'dim')} {how}{seconds(self.elapsed)}"
                self._console.say(mark + text if terminal.live else text)
        self._watch.join()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def status(self) -> str:
        spinner = SPINNER if self._console.terminal.unicode else ASCII_SPINNER
        turn = spinner[int(self.elapsed / TICK_S) % len(spinner)]
        return f"{turn} {self._text} ... {seconds(self.elapsed)}" + (f"  {self._note}" if self._note else "")

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            with self._console._lock:
                if self._console._phases[-1:] == [self]:
                    self._console._erase()
                    self._console._draw()

    def _announce(self) -> None:
        """Whole lines for a log: what it is, unless it is brief, and from time to time that it goes on."""
        if not self._brief and not self._over.wait(SAY_AFTER_S):
            with self._console._lock:
                if not self._over.is_set():
                    self._console.say(f"{self._text} ...")
        while not self._over.wait(SAY_EVERY_S):
            note = f", {self._note}" if self._note else ""
            with self._console._lock:
                if not self._over.is_set():
                    self._console.say(f"{self._text} ... {seconds(self.elapsed)} so far{note}")
