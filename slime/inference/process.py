"""A server in a process of its own, under a supervisor that ends it with us: what engines and router have in common.

Invariants
- `start` returns at once; `wait_ready` when the server's own health check says so, or raises at its deadline.
- The port is held for the server from `start` until it listens. If somebody takes it all the same, a port that we chose
  is replaced by another, a few times; a port that the user chose is never replaced.
- After `stop` nothing of the server is left; the log file stays.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

import slime
from slime.inference.errors import InferenceError
from slime.platform import ports

PORT_ATTEMPTS = 4
PORT_TAKEN = ("address already in use", "port is already in use")  # in the log; the process may well live on
STOP_TIMEOUT_S = 40.0  # more than the supervisor takes before it gives up
LOG_LINES = 25
PROGRESS = re.compile(r"\d+%")  # of a progress bar, which says nothing of why a server ended
RAISED = re.compile(  # the line of an exception, after its frames; or what a parser of options says
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?P<exception>\S.*)|^[\w ./-]+: (?P<refusal>error: .*)",
    re.MULTILINE,
)
CONSEQUENCE = re.compile(r"\bdied\b|EOFError|BrokenPipe|Connection(Reset|Refused)")  # of another process's exception


class ServerProcess(ABC):
    """`name` is what messages call it, `comes_back` what becomes of it with --use-fault-tolerance. `port` None lets the
    system choose; it is settled once `wait_ready` has returned."""

    comes_back = "it is started again"

    def __init__(self, name: str, *, host: str, port: int | None, log_path: Path) -> None:
        if host in ("0.0.0.0", "::", ""):
            raise ValueError(f"{name}: host {host!r} is no address that others could reach: name the machine's own")
        self.name = name
        self.host = host
        self.port = port
        self.log_path = Path(log_path)
        self._port_is_chosen = port is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved: list[socket.socket] = []
        self._log_start = 0

    def reserve_port(self, port: int = 0) -> int:
        """Holds `port` of our host, or one that is free, until the server is up. Raises OSError when it is taken."""
        self._reserved.append(ports.reserve(self.host, port))
        return ports.number(self._reserved[-1])

    def _release_ports(self) -> None:
        while self._reserved:
            self._reserved.pop().close()

    @abstractmethod
    def command(self) -> list[str]:
        """The server's command line, on `self.host` and `self.port`."""

    @abstractmethod
    def environment(self) -> Mapping[str, str | None]:
        """What its environment has beyond ours; None removes a variable."""

    @abstractmethod
    def is_healthy(self) -> bool:
        """Whether the server answers that it is up; False also when there is no answer."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of the supervisor, which is the server's parent."""
        return self._process and self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Raises InferenceError when the port that the user chose is taken."""
        if self.is_running:
            raise InferenceError(f"{self.name} is running already, at {self.url}")
        self._release_ports()
        try:
            self.port = self.reserve_port(self.port if self._port_is_chosen else 0)
        except OSError as error:
            self._release_ports()
            raise InferenceError(
                f"{self.name}: cannot listen on port {self.port} of {self.host} ({error.strerror}): choose another, "
                "or none to have a free one found"
            ) from error
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slime.inference.supervise", str(os.getpid()), *self.command()],
                env=self._whole_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl+C in the terminal is for us; we stop our servers in order
            )

    def _whole_environment(self) -> dict[str, str]:
        # The package may be imported from a checkout that is on no path but ours.
        path = os.pathsep.join(filter(None, [str(Path(slime.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        changes = self.environment()
        kept = {name: value for name, value in os.environ.items() if name not in changes}
        return {**kept, "PYTHONPATH": path, **{name: value for name, value in changes.items() if value is not None}}

    def restart(self, timeout: float) -> None:
        """Ends what is left of it, and waits until it is up again: on the same port, if others know that one. Raises as
        `wait_ready`."""
        self.stop()
        self.start()
        self.wait_ready(timeout)

    def has_ended(self, within: float) -> bool:
        """Whether it ends in the next `within` seconds, or has already: who lost the connection may know it first."""
        process = self._process
        try:
            return process is None or process.wait(within) is not None
        except subprocess.TimeoutExpired:
            return False

    def ending(self) -> str:
        """How it has ended, as the end of a sentence: "killed by SIGKILL"."""
        process = self._process
        status = process.poll() if process else None
        if status is None:
            return "stopped"
        number = -status if status < 0 else status - 128
        with suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"with status {status}"

    def wait_ready(self, timeout: float) -> None:
        """Waits until the server is up.

        Raises:
            InferenceError: it has ended, or is not up after `timeout` seconds; with the end of its log.
        """
        if self._process is None:
            raise InferenceError(f"{self.name} was never started, or is stopped")
        deadline = time.monotonic() + timeout
        attempts = 1
        while (process := self._process) is not None and not (self.is_healthy() and self._listens(process.pid)):
            status = process.poll()
            if any(sign in self.log().lower() for sign in PORT_TAKEN):
                if self._port_is_chosen or attempts == PORT_ATTEMPTS:
                    raise InferenceError(
                        f"{self.name}: port {self.port} of {self.host} was taken meanwhile.{self.log_tail()}"
                    )
                attempts += 1
                self.stop()
                self.start()
            elif status is not None:
                raise self.start_failure()
            elif time.monotonic() > deadline:
                raise InferenceError(f"{self.name} is not up after {timeout:g} s.{self.log_tail()}")
            time.sleep(0.1)
        if process is None:
            raise InferenceError(f"{self.name} was stopped before it was up")
        self._release_ports()

    def _listens(self, supervisor: int) -> bool:
        """Whether it is our server that answers, and not another that took the port first."""
        try:
            processes = psutil.Process(supervisor).children(recursive=True)
            listening = {
                connection.laddr.port
                for process in processes
                for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN
            }
        except psutil.NoSuchProcess:  # the next look at it says why
            return False
        return self.port in listening

    def log(self) -> str:
        """What the server has written since its last start."""
        with open(self.log_path, "rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def start_failure(self) -> InferenceError:
        """Of a server that has ended before it was up: what it raised, where its log is, and the end of that."""
        found = [match["exception"] or match["refusal"] for match in RAISED.finditer(self.log())]
        causes = [line for line in found if not CONSEQUENCE.search(line)] or found
        cause = causes[-1].strip() if causes else f"it has ended, {self.ending()}"
        return InferenceError(f"{self.name} did not start: {cause} (its log: {self.log_path}){self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of the log, to be appended to a message; nothing if there are none."""
        lines = [line for line in self.log().rstrip().split("\n") if not PROGRESS.search(line)]
        if not any(lines):
            return ""
        return f"\nThe last lines of {self.log_path}:\n" + "\n".join(f"    {line}" for line in lines[-LOG_LINES:])

    def stop(self) -> None:
        """Ends the server and all it started; returns when nothing is left. Idempotent.

        Raises:
            InferenceError: the system could not end it.
        """
        self._release_ports()
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise InferenceError(
                f"{self.name}: could not be ended within {STOP_TIMEOUT_S:g} s.{self.log_tail()}"
            ) from None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
