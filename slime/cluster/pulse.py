"""Pulse: notices that an actor has died which nobody waits for, such as a trainer while a rollout is made.

Each is asked for a sign of life again and again, when it has given the last one. Those at work answer when they are
done; of one that is dead the question fails at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import ray
from ray.exceptions import RayError

BEAT_S = 2.0


class Pulse:
    def __init__(self, actors: Sequence[ray.actor.ActorHandle]) -> None:
        self._actors = list(actors)
        self._asked: dict[int, ray.ObjectRef] = {}  # by position among the actors; those that failed stay
        self._next = 0.0

    def beat(self) -> list[ray.ObjectRef]:
        """The questions that have no answer; one of a dead actor has failed, or soon will."""
        refs = list(self._asked.values())
        answered = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0]) if refs else ()
        self._asked = {i: ref for i, ref in self._asked.items() if ref not in answered or _failed(ref)}
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + BEAT_S
            for i, actor in enumerate(self._actors):
                if i not in self._asked:
                    self._asked[i] = actor.__ray_ready__.remote()
        return list(self._asked.values())


def _failed(ref: ray.ObjectRef) -> bool:
    try:
        ray.get(ref)
    except RayError:
        return True
    return False
