"""History: what a run's ledger says, read only, also while the run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

from slime.data.ledger import GENERATED_FOR, LIVE, ROLLED_BACK, Entry, State
from slime.data.ledger_file import explained, open_for_reading


@dataclass(frozen=True, slots=True)
class Change:
    """`time` is in seconds since 1970."""

    state: State
    time: float
    note: str | None


@dataclass(frozen=True, slots=True)
class Count:
    """`since` and `until` are the first and the last time at which one of them came to its state."""

    samples: int
    groups: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Drop:
    """One reason: how many samples were dropped for it, when the last was, and some of them, the latest first."""

    reason: str
    samples: int
    last: float
    examples: list[int]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many samples were issued; of these, how many are trained, how many dropped, how many neither (`lost`, if the
    run is over), and how many were trained on twice without being taken back between."""

    issued: int
    trained: int
    dropped: int
    lost: int
    twice: int


EXAMPLES = 6


class History:
    """Of one ledger. Every method raises LedgerError when the file can't be read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._db = open_for_reading(self.path)

    def close(self) -> None:
        self._db.close()

    def counts(self) -> dict[State, Count]:
        """Of the states that some sample is in."""
        query = "SELECT state, COUNT(*), COUNT(DISTINCT group_id), MIN(since), MAX(since) FROM samples GROUP BY state"
        return {State(state): Count(*numbers) for state, *numbers in self._rows(query)}

    def numbers(self) -> tuple[int, int] | None:
        """The lowest and the highest number of a sample; None where there is none."""
        ((lowest, highest),) = self._rows("SELECT MIN(id), MAX(id) FROM samples")
        return None if lowest is None else (lowest, highest)

    def sample(self, id: int) -> tuple[Entry, list[Change]] | None:
        """Where a sample is, and how it came there."""
        found = self._entries("WHERE id = ?", id)
        changes = self._rows("SELECT state, time, note FROM changes WHERE sample = ? ORDER BY number", id)
        return (found[0], [Change(State(state), time, note) for state, time, note in changes]) if found else None

    def drops(self) -> list[Drop]:
        """The most frequent reason first."""
        dropped = """
            SELECT reason, COUNT(*) OVER same AS samples, MAX(since) OVER same AS last, id,
                ROW_NUMBER() OVER (PARTITION BY reason ORDER BY since DESC, id) AS place
            FROM samples WHERE state = 'dropped' WINDOW same AS (PARTITION BY reason)"""
        query = f"SELECT * FROM ({dropped}) WHERE place <= ? ORDER BY samples DESC, reason, place"
        by_reason = groupby(self._rows(query, EXAMPLES), key=itemgetter(0, 1, 2))
        return [
            Drop(_so_far(reason), *numbers, [id for _, _, _, id, _ in rows]) for (reason, *numbers), rows in by_reason
        ]

    def step(self, rollout_id: int) -> list[Entry]:
        """The batch of a rollout, by falling reward; samples without one are last."""
        return self._entries("WHERE rollout = ? ORDER BY reward IS NULL, reward DESC, id", rollout_id)

    def steps(self) -> list[int]:
        """The rollouts that have a batch, in rising order."""
        return [
            rollout
            for (rollout,) in self._rows("SELECT DISTINCT rollout FROM samples WHERE rollout IS NOT NULL ORDER BY 1")
        ]

    def waiting(self) -> list[Entry]:
        """What is neither trained nor dropped; what has been in its state for longest first."""
        return self._entries(f"WHERE state IN ({', '.join('?' * len(LIVE))}) ORDER BY since, id", *LIVE)

    def tally(self) -> Tally:
        """Of the whole run. What was trained on after the checkpoint that a restart went back to counts as not
        trained."""
        counts = {state: count.samples for state, count in self.counts().items()}
        times: dict[int, int] = {}
        for id, state, note in self._rows("SELECT sample, state, note FROM changes ORDER BY number"):
            before = 0 if (note or "").startswith(ROLLED_BACK) else times.get(id, 0)
            times[id] = before + (state == State.TRAINED)
        return Tally(
            issued=sum(counts.values()),
            trained=counts.get(State.TRAINED, 0),
            dropped=counts.get(State.DROPPED, 0),
            lost=sum(counts.get(state, 0) for state in LIVE),
            twice=sum(count > 1 for count in times.values()),
        )

    def last_change(self) -> int:
        """The number of the last change; 0 before the first."""
        return self._rows("SELECT COALESCE(MAX(number), 0) FROM changes")[0][0]

    def has_begun(self, rollout_id: int, after: int, until: float = inf) -> bool:
        """Whether some sample was generated for a rollout, or came into its batch, after the change of that number and
        until that time."""
        of_rollout = "(rollout = ? OR (state = ? AND note = ?))"
        query = f"SELECT 1 FROM changes WHERE number > ? AND time <= ? AND {of_rollout} LIMIT 1"
        return bool(self._rows(query, after, until, rollout_id, State.GENERATING, f"{GENERATED_FOR} {rollout_id}"))

    def checkpoints(self) -> list[int]:
        return [rollout for (rollout,) in self._rows("SELECT rollout FROM checkpoints ORDER BY rollout")]

    def _entries(self, condition: str, *values: Any) -> list[Entry]:
        return [Entry.of_row(row) for row in self._rows(f"SELECT * FROM samples {condition}", *values)]

    def _rows(self, query: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        with explained(self.path):
            return self._db.execute(query, values).fetchall()


def _so_far(reason: str) -> str:
    """A restart drops what it counts as never issued, until its turn comes again."""
    return f"{reason}, and not handed out since" if reason.startswith(ROLLED_BACK) else reason
