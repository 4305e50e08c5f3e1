"""ExternalEngine: an SGLang server that somebody else started, and that we only use.

Invariant: it is never started, stopped or killed from here; when it no longer answers, whoever started it has the time
to start it again.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace

from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError

LOOK_S = 0.5
LISTENS_S = 2.0  # between two looks whether somebody listens


class ExternalEngine:
    """`address` is host:port. What it was started with is asked of the engine itself, once it answers."""

    def __init__(self, address: str, index: int = 0) -> None:
        self.name = f"engine {index} at {address}"
        self.control = EngineControl(f"http://{address}", name=self.name, index=index)
        host, _, port = address.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._is_up, self._listens, self._looked = False, True, 0.0

    @property
    def is_running(self) -> bool:
        """Whether somebody listens at its address, once it was up; who listens and does not answer hangs."""
        if self._is_up and time.monotonic() > self._looked + LISTENS_S:
            self._looked, self._listens = time.monotonic(), self._somebody_listens()
        return self._listens

    def _somebody_listens(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=LISTENS_S).close()
        except TimeoutError:
            return self._listens
        except OSError:
            return False
        return True

    def start(self) -> None:
        """Nothing to do: it runs already."""

    def restart(self, timeout: float) -> None:
        """Waits until somebody has."""
        self._is_up, self._listens = False, True
        self.wait_ready(timeout)

    def wait_ready(self, timeout: float) -> None:
        """Waits until it answers, and learns its size. Raises InferenceError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                info = self.control.server_info()
                break
            except InferenceError as error:
                if time.monotonic() > deadline:
                    raise InferenceError(f"{self.name} is not up after {timeout:g} s: {error}") from error
            time.sleep(LOOK_S)
        self.control = replace(self.control, num_devices=info["tp_size"])
        self._is_up = True

    def has_ended(self, within: float) -> bool:
        return not self._somebody_listens()

    def ending(self) -> str:
        return "nobody listens at its address any more"

    def log_tail(self) -> str:
        """Its log is with whoever started it."""
        return ""

    def stop(self) -> None:
        """It stays as it is."""
