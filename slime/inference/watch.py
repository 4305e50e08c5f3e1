"""Watch: says when a server has died, and ends one that no longer answers.

A server that hangs is one that has not answered for `timeout` seconds, whatever it was asked meanwhile; it is killed,
and from then on as dead as any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from slime.inference.errors import InferenceError
from slime.inference.external import ExternalServer
from slime.inference.process import ServerProcess

if TYPE_CHECKING:
    from slime.config import Config

LOOK_S = 0.2


@dataclass(frozen=True)
class Death:
    """`cause` is what to say after the server's name, `what_then` what becomes of it, `log_tail` the last lines of its
    log."""

    cause: str
    what_then: str
    log_tail: str = ""

    @classmethod
    def at_start(cls, error: InferenceError, server: ServerProcess | ExternalServer) -> Self:
        """Of a server that should have come up again."""
        what, newline, log_tail = str(error).partition("\n")
        return cls(f"did not come up again: {what.removesuffix('.')}", server.comes_back, newline + log_tail)


@dataclass(frozen=True)
class Checks:
    """When a server is asked whether it is well, in seconds; see --rollout-health-check-interval and its neighbours."""

    interval: float
    timeout: float
    first_wait: float = 0.0

    @classmethod
    def from_config(cls, config: Config) -> Self | None:
        """None without --use-fault-tolerance."""
        if not config.use_fault_tolerance:
            return None
        return cls(
            config.rollout_health_check_interval,
            config.rollout_health_check_timeout,
            config.rollout_health_check_first_wait,
        )


class Watch:
    """Over one server, by a thread of its own. `ask(timeout)` raises InferenceError when the server has no good answer
    within so many seconds; it is never asked before `server_is_up` was called. Without `checks` nobody comes back."""

    def __init__(
        self, server: ServerProcess | ExternalServer, ask: Callable[[float], None], checks: Checks | None
    ) -> None:
        self.server, self.ask, self.checks = server, ask, checks
        self._due: float | None = None
        self._was_up = self._stopped = False

    def server_is_up(self) -> None:
        self._was_up = True
        if self.checks is not None:
            self._due = time.monotonic() + self.checks.first_wait

    def stop(self) -> None:
        """The server is about to be stopped: its end is nothing to tell."""
        self._stopped = True

    def death_if_mended(self) -> Death | None:
        """As `death`, where the server will come back; else that is an InferenceError, which says so."""
        death = self.death()
        if death is None or self.checks is not None:
            return death
        if not self._was_up:
            raise self.server.start_failure()
        raise InferenceError(
            f"{self.server.name} {death.cause}. With --use-fault-tolerance {death.what_then}.{death.log_tail}"
        )

    def death(self) -> Death | None:
        """Waits for the server's death; None when the watch was stopped."""
        silent_since: float | None = None
        while not self._stopped:
            if not self.server.is_running:
                return None if self._stopped else self._death(f"has ended, {self.server.ending()}")
            if self._due is not None and time.monotonic() >= self._due:
                silent_since = self._check(silent_since or time.monotonic())
                if silent_since is not None and time.monotonic() - silent_since >= self.checks.timeout:
                    return self._kill()
            time.sleep(LOOK_S)
        return None

    def _check(self, since: float) -> float | None:
        """Asks. Returns since when there has been no answer; None if there was one."""
        try:
            self.ask(self.checks.timeout)
        except InferenceError:
            return since
        self._due = time.monotonic() + self.checks.interval
        return None

    def _kill(self) -> Death | None:
        if self._stopped or not self.server.is_running:  # the reason why it did not answer
            return self.death()
        cause = f"had not answered for {self.checks.timeout:g} s"
        if isinstance(self.server, ExternalServer):  # not ours to kill
            return self._death(cause)
        death = self._death(f"{cause}, and was killed")
        self.server.stop()
        return death

    def _death(self, cause: str) -> Death:
        return Death(cause, self.server.comes_back, self.server.log_tail())
