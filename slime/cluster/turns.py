"""Who is awake: training and inference share devices in turns, or have their own and need no turns.

Colocated, this is a state machine of two states, {training awake, inference asleep} and back; a call in the wrong state
is an error that says so. Decoupled, both are always awake and a change of turn costs nothing. Either way new weights
travel when the turn goes to inference, since that is when inference can use them; and, to an engine that had died and
is up again, while a rollout is waited for: training has nothing to do then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from slime.cluster.engines import Engines
from slime.cluster.recovery import Recovery
from slime.cluster.trainers import Trainers
from slime.cluster.wait import ActorFailed
from slime.inference.control import EngineControl

CHANGE_S = 900.0


class Turn(Enum):
    TRAINING = "training awake, inference asleep"
    INFERENCE = "inference awake, training asleep"


class TurnError(RuntimeError):
    """Something was asked of a half that is asleep."""


class Turns:
    """Begins with the turn of training, so that the first change brings the first weights, as version `first_version`.

    `wait(refs, what, seconds)` waits for actors; `engines_sleep` says whether colocated engines release their memory
    while it is not their turn (--offload-rollout). `version` is that of the weights which inference has; before it has
    any from training, one less than the first. Without engines, or without ranks that train (--debug-rollout-only),
    there are no turns to take.
    """

    def __init__(
        self,
        trainers: Trainers,
        engines: Engines,
        recovery: Recovery,
        wait: Callable[[Any, str, float], Any],
        *,
        colocated: bool,
        engines_sleep: bool,
        first_version: int = 0,
    ) -> None:
        self.trainers, self.engines, self.recovery, self.wait = trainers, engines, recovery, wait
        self.connected: list[EngineControl] = []  # the engines that the trainers have a way to
        self.colocated, self.engines_sleep = colocated, colocated and engines_sleep
        self.version = first_version - 1
        self.is_current = not len(trainers)  # whether inference has the weights that training has
        self.turn = Turn.INFERENCE
        self.to_training()

    @property
    def next_version(self) -> int:
        """Of the weights that training has; the same while it has not changed them."""
        return self.version if self.is_current else self.version + 1

    def expect(self, turn: Turn, what: str) -> None:
        """Raises TurnError if `what` is asked for out of turn."""
        if self.colocated and self.turn is not turn:
            raise TurnError(f"{what} was asked for out of turn: it is {self.turn.value}")

    def to_training(self) -> dict[str, float]:
        """Puts inference to sleep. Returns what it took, in seconds."""
        self.expect(Turn.INFERENCE, "the engines' sleep")
        start = time.perf_counter()
        if self.engines_sleep:
            self.wait(self.engines.sleep(), "the engines to release their memory", CHANGE_S)
            self.recovery.may_start = False
        self.turn = Turn.TRAINING
        return {"perf/sleep_time": time.perf_counter() - start}

    def to_inference(self) -> dict[str, float]:
        """Wakes inference with the weights that training has now. Returns what it took, in seconds."""
        self.expect(Turn.TRAINING, "the engines' waking")
        self.turn = Turn.INFERENCE
        if not len(self.engines) or (self.is_current and not self.engines_sleep):
            return {}
        start = time.perf_counter()
        self.recovery.may_start = True
        if self.engines_sleep:
            self.wait(self.engines.wake(["weights"]), "the engines to take memory for weights", CHANGE_S)
        awake = time.perf_counter()
        pushed = self._update()
        self.version, self.is_current = self.next_version, True
        sent = time.perf_counter()
        if self.engines_sleep:
            self.wait(self.engines.wake(["kv_cache"]), "the engines to take memory for their caches", CHANGE_S)
        return {
            "perf/wake_up_time": awake - start + time.perf_counter() - sent,
            "perf/update_weights_time": sent - awake,
            "perf/update_weights_wire_bytes": sum(rank["perf/update_weights_wire_bytes"] for rank in pushed),
        }

    def heal(self) -> None:
        """Gives engines that had died and are up again the weights that training has, and lets them serve; the others
        generate on. For waits during which training has nothing to do."""
        self.recovery.look()
        back = self.recovery.returned
        if not back:
            return
        try:
            if len(self.trainers):
                what = f"weights to reach {', '.join(engine.name for engine in back)}"
                self.wait(self.trainers.bring(self.next_version, back), what, CHANGE_S)
        except ActorFailed as failure:
            self.recovery.explain(failure, back)
        else:
            self.recovery.serve(back, f"weights of version {self.next_version}")

    def _update(self) -> list[dict[str, float]]:
        """Gives the engines that are up the weights that training has; again, when one of them dies meanwhile. Returns
        what each rank measured; nothing if all are down: they get their weights when they come back."""
        while True:
            self.recovery.look()
            engines = self.recovery.up
            if not engines:
                return []
            try:
                if engines != self.connected:
                    connecting = self.trainers.connect(engines)
                    self.wait(connecting, "training to find the engines", CHANGE_S)
                    self.connected = engines
                pushed = self.wait(self.trainers.push(self.next_version), "new weights to reach the engines", CHANGE_S)
            except ActorFailed as failure:
                self.connected = []
                self.recovery.explain(failure, engines)
            else:
                self.recovery.serve(engines, f"weights of version {self.next_version}")
                return pushed
