"""What a built-in grader says: a score and, for the person reading, why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """`extra` are further entries of the reward, which then is a dict of them and the score."""

    score: float
    reason: str
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def reward(self) -> float | dict[str, Any]:
        return {"score": self.score, **self.extra} if self.extra else self.score


def right(reason: str) -> Verdict:
    return Verdict(1.0, reason)


def wrong(reason: str) -> Verdict:
    return Verdict(0.0, reason)
