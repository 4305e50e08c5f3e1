"""Interrupt: Ctrl+C, SIGTERM and SIGHUP end a run by one exception, which is raised once.

Invariants: the first signal raises KeyboardInterrupt wherever the main thread is, and again at the next `check` if that
was swallowed (Ray's callbacks do). Those that follow only say that the run is ending, so that nothing cuts its end
short.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_caught: Interrupt | None = None


class Interrupt:
    """Handles this process's signals from `catch` until `release`. Does nothing outside the main thread."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._ending = False
        self._undo = ExitStack()

    def catch(self) -> None:
        """May be called again, when something else has put its handlers in place."""
        global _caught
        if threading.current_thread() is threading.main_thread():
            _caught = self
            for number in _SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup: the run is to outlive its terminal
                self._undo.callback(signal.signal, number, signal.signal(number, self._handle))

    def end(self) -> None:
        """From now on no signal raises."""
        self._ending = True

    def release(self) -> None:
        """Puts the handlers back that were there before."""
        global _caught
        _caught = None
        self._undo.close()

    def check(self) -> None:
        if self.number is not None and not self._ending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: object) -> None:
        if self._ending or self.number is not None:
            print("slime: ending what this run has started; this takes a few seconds", file=sys.stderr)
            return
        self.number = number
        raise KeyboardInterrupt


def check() -> None:
    """Raises KeyboardInterrupt if a signal came that has not ended the run yet. For loops that wait."""
    if _caught is not None:
        _caught.check()
