"""Command: how whatever a person calls ends, `python train.py` and `python -m slime.X`. To be imported first.

Invariants, from this import on, so also while the rest is imported:
- Ctrl+C that nobody catches ends in one line and with status 130.
- A library that is not installed is one line that says what to do.
- Standard output that is closed, as by `| head`, ends the process in order and with status 141, as the signal of that
  name would, but not in the middle of something; one on a full disk in one line and with status 1. Only the main thread
  ends by it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from types import TracebackType

LIBRARIES = {
    "aiohttp", "jinja2", "latex2sympy2_extended", "megatron", "numpy", "orjson", "psutil", "pyarrow", "pydantic", "ray",
    "safetensors", "setproctitle", "sglang", "sglang_router", "sympy", "tokenizers", "torch", "transformers", "yaml",
}  # fmt: skip
"""All that some module here imports and that `scripts/install.sh` installs."""


class OutputLost(SystemExit):
    """Standard output takes no more. The first time, what is written afterwards goes nowhere."""


class Output(io.TextIOWrapper):
    """Standard output that raises OutputLost."""

    def write(self, text: str) -> int:
        with self._lost():
            return super().write(text)

    def flush(self) -> None:
        with self._lost():
            super().flush()

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if threading.current_thread() is not threading.main_thread():
                raise SystemExit from None  # of which nothing is said; the main thread comes to it, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise OutputLost(141) from None
            _say(f"slime: standard output cannot be written: {error.strerror}")
            raise OutputLost(1) from None


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # of standard error that is closed, too
        print(line, file=sys.stderr, flush=True)


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        _say("slime: interrupted; whatever it had started has ended")
        raise SystemExit(130)
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in LIBRARIES:
        _say(
            f"slime: {error.name} is not installed for {sys.executable}: `bash scripts/install.sh` makes .venv, whose"
            " bin/python has all that slime needs; `python -m slime.doctor` says what else is missing"
        )
        raise SystemExit(1)
    sys.__excepthook__(kind, error, trace)


def _write_the_rest() -> None:
    try:
        sys.stdout.flush()
    except OutputLost as lost:
        os._exit(lost.code)  # nothing else is left to do: this was registered first, so it is called last


sys.excepthook = _end
_stream = sys.stdout or open(os.devnull, "w")  # none, where it was closed before the start
sys.stdout = Output(
    _stream.buffer,
    encoding=_stream.encoding,
    errors=_stream.errors,
    line_buffering=_stream.line_buffering,
    write_through=_stream.write_through,
)
atexit.register(_write_the_rest)
