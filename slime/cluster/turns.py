"""Who is awake: training and inference share devices in turns, or have their own and need no turns.

Colocated, this is a state machine of two states, {training awake, inference asleep} and back; a call in the wrong state is an error
that says so. Decoupled, both are always awake and a change of turn costs nothing. Either way new weights travel when the turn goes
to inference, since that is when inference can use them.
"""

from __future__ import annotations

import time
from enum import Enum

from slime.cluster.engines import Engines
from slime.cluster.trainers import Trainers
from slime.cluster.wait import wait


class Turn(Enum):
    TRAINING = "training awake, inference asleep"
    INFERENCE = "inference awake, training asleep"


class TurnError(RuntimeError):
    """Something was asked of a half that is asleep."""


class Turns:
    """Begins with the turn of training, so that the first change pushes the first weights, as version 0.

    `version` is that of the weights which inference has, -1 before it has any from training.
    """

    def __init__(self, trainers: Trainers, engines: Engines, *, colocated: bool, timeout: float) -> None:
        self.trainers, self.engines, self.colocated, self.timeout = trainers, engines, colocated, timeout
        self.turn = Turn.INFERENCE
        self.version = -1
        self.to_training()

    def expect(self, turn: Turn, what: str) -> None:
        """Raises TurnError if `what` is asked for out of turn."""
        if self.colocated and self.turn is not turn:
            raise TurnError(f"{what} was asked for, but it is the other half's turn: {self.turn.value}")

    def to_training(self) -> dict[str, float]:
        """Puts inference to sleep. Returns what it took, in seconds."""
        self.expect(Turn.INFERENCE, "sleep of the engines")
        start = time.perf_counter()
        if self.colocated:
            wait(self.engines.sleep(), "the engines to release their memory", self.timeout)
        self.turn = Turn.TRAINING
        return {"perf/sleep_time": time.perf_counter() - start}

    def to_inference(self) -> dict[str, float]:
        """Wakes inference with the weights that training has now. Returns what it took, in seconds."""
        self.expect(Turn.TRAINING, "wake-up of the engines")
        start = time.perf_counter()
        if self.colocated:
            wait(self.engines.wake(["weights"]), "the engines to get memory for weights", self.timeout)
        awake = time.perf_counter()
        pushed = wait(self.trainers.push(self.version + 1), "new weights to reach the engines", self.timeout)
        self.version += 1
        sent = time.perf_counter()
        if self.colocated:
            wait(self.engines.wake(["kv_cache"]), "the engines to get memory for their caches", self.timeout)
        self.turn = Turn.INFERENCE
        return {
            "perf/wake_up_time": awake - start + time.perf_counter() - sent,
            "perf/update_weights_time": sent - awake,
            "perf/update_weights_wire_bytes": sum(rank["perf/update_weights_wire_bytes"] for rank in pushed),
        }
