"""ExternalServer: an engine or a router that somebody else started, and that we only use.

Invariant: it is never started, stopped or killed from here; when it no longer answers, whoever started it has the time
to start it again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError, RequestError

LOOK_S = 0.5
LISTENS_S = 2.0  # between two looks whether somebody listens


class ExternalServer:
    """`address` is host:port."""

    comes_back = "the run waits up to 30 min until you have started it again"

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        host, _, port = address.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._is_up, self._is_there, self._looked = False, True, 0.0

    @property
    def is_running(self) -> bool:
        """Whether it is there, once it was up; who listens and does not answer hangs."""
        if self._is_up and time.monotonic() > self._looked + LISTENS_S:
            self._looked, self._is_there = time.monotonic(), self.look()
        return self._is_there

    def look(self) -> bool:
        """Whether somebody listens at its address. Where there is no answer, as the last time."""
        try:
            socket.create_connection(self._address, timeout=LISTENS_S).close()
        except TimeoutError:
            return self._is_there
        except OSError:
            return False
        return True

    def start(self) -> None:
        """Nothing to do: it runs already."""

    def wait_ready(self, timeout: float) -> None:
        """Raises InferenceError when it is not up after `timeout` seconds."""
        raise NotImplementedError

    def restart(self, timeout: float) -> None:
        """Waits until somebody has."""
        self._is_up, self._is_there = False, True
        self.wait_ready(timeout)

    def has_ended(self, within: float) -> bool:
        return not self.look()

    def ending(self) -> str:
        return "nobody listens at its address any more"

    def log_tail(self) -> str:
        """Its log is with whoever started it."""
        return ""


class ExternalEngine(ExternalServer):
    """An SGLang server. What it was started with is asked of the engine itself, once it answers. `needs_texts` is the
    option for which it has to know its tokenizer, if there is one."""

    def __init__(self, address: str, index: int = 0, needs_texts: str | None = None) -> None:
        super().__init__(f"engine {index} at {address}", address)
        self.control = EngineControl(f"http://{address}", name=self.name, index=index)
        self.needs_texts = needs_texts
        self._has_been_up = False

    def wait_ready(self, timeout: float) -> None:
        """Waits until it takes requests, and learns its size. Raises InferenceError after `timeout` seconds, and at
        once when it can't do what will be asked of it."""
        deadline = time.monotonic() + timeout
        info = self._until(deadline, timeout, self.control.server_info)
        if self.needs_texts is not None and info.get("skip_tokenizer_init"):
            raise InferenceError(
                f"{self.name} was started with --skip-tokenizer-init, and {self.needs_texts} needs its tokenizer: "
                f"start it without that option, or this run without {self.needs_texts}"
            )
        self._until(deadline, timeout, self._warm)
        starts = self.control.starts + self._has_been_up
        self.control = replace(self.control, num_devices=info["tp_size"], starts=starts)
        self._is_up = self._has_been_up = True

    def _until(self, deadline: float, timeout: float, ask: Callable[[], Any]) -> Any:
        """What it says to `ask`, once there is a good answer."""
        while True:
            try:
                return ask()
            except InferenceError as error:
                if time.monotonic() > deadline:
                    raise InferenceError(f"{self.name} is not up after {timeout:g} s: {error}") from error
            time.sleep(LOOK_S)

    def _warm(self) -> None:
        """Raises InferenceError while it warms up: then it says what it is, and takes no requests."""
        try:
            self.control.health()
        except RequestError:
            raise
        except InferenceError:  # paused, as a run that was killed may have left it: the first update lets it go on
            self.control.server_info()

    def stop(self) -> None:
        """It stays as it is."""
