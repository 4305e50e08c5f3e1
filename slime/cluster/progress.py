"""Progress: how far the rollout is that is waited for, asked of the rollout actor now and then, for the console."""

from __future__ import annotations

import time
from contextlib import suppress

import ray
from ray.exceptions import RayError

from slime.cluster.rollouts import Rollouts
from slime.observe import Console

EVERY_S = 2.0


class Progress:
    """Of one wait."""

    def __init__(self, rollouts: Rollouts, console: Console) -> None:
        self._rollouts, self._console = rollouts, console
        self._asked: ray.ObjectRef | None = None
        self._next = time.monotonic() + EVERY_S

    def look(self) -> None:
        """Asks when it is time to, and shows what was answered. Does not wait."""
        if self._asked is None:
            if time.monotonic() >= self._next:
                self._asked = self._rollouts.progress()
        elif ray.wait([self._asked], timeout=0)[0]:
            with suppress(RayError):  # whoever waits for the rollout hears that its actor has died
                self._console.note(ray.get(self._asked))
            self._asked, self._next = None, time.monotonic() + EVERY_S
