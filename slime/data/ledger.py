"""Ledger: what became of every sample of a run, kept in a file (see ledger_file.py).

States: issued (handed out, or waiting to be) -> generating -> finished -> trained; from each but the last -> dropped,
with a reason. A sample whose generation was cut short is put back: issued again, with the tokens that it has.

Invariants: a sample is in exactly one state; a change that LEGAL does not list is an error and leaves everything as it
was; changes are written in the order they were made, by transactions, so that a process killed at any moment leaves all
samples in the states of one moment, at most FLUSH_S before. Only `roll_back` goes backwards, to where all was when a
checkpoint was saved.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any

from slime.data.ledger_file import LedgerError, explained, open_for_writing
from slime.data.outcome import Outcome

FLUSH_S = 0.25
GENERATED_FOR = "for rollout"  # how the note of what is being generated begins
ROLLED_BACK = "rolled back"  # how the reason begins of what a restart counts as never issued


class State(StrEnum):
    ISSUED = "issued"
    GENERATING = "generating"
    FINISHED = "finished"
    TRAINED = "trained"
    DROPPED = "dropped"


LIVE = (State.ISSUED, State.GENERATING, State.FINISHED)
LEGAL: dict[State | None, tuple[State, ...]] = {
    None: (State.ISSUED,),
    State.ISSUED: (State.ISSUED, State.GENERATING, State.FINISHED, State.DROPPED),
    State.GENERATING: (State.ISSUED, State.FINISHED, State.DROPPED),
    State.FINISHED: (State.ISSUED, State.FINISHED, State.TRAINED, State.DROPPED),  # finished once more: now in a batch
    State.TRAINED: (),
    State.DROPPED: (),
}


@dataclass(slots=True)
class Entry:
    """A row of `samples`; `state` is None before the sample is issued."""

    id: int
    group_id: int | None
    state: State | None = None
    since: float = 0.0
    issues: int = 0
    rollout: int | None = None
    tokens: int | None = None
    response_tokens: int | None = None
    reward: float | None = None
    weight_versions: str | None = None
    reason: str | None = None

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Entry:
        entry = cls(*row)
        entry.state = State(entry.state)
        return entry

    def row(self) -> tuple[Any, ...]:
        """`state` as a plain text: SQLite's module asks of every other type, a StrEnum too, how to store it."""
        id, group, state, *rest = _columns(self)
        return (id, group, state.value, *rest)

    @property
    def is_rolled_back(self) -> bool:
        return self.state is State.DROPPED and self.reason.startswith(ROLLED_BACK)

    def tell(self, outcome: Outcome) -> None:
        self.tokens, self.response_tokens, self.reward = outcome.tokens, outcome.response_tokens, outcome.reward
        self.weight_versions = " ".join(outcome.weight_versions)


_columns = attrgetter(*Entry.__slots__)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a restart found, in samples: `untrained` had been trained on after the checkpoint, `under_way` had not, and
    were not dropped either. All of them are issued again."""

    untrained: int = 0
    under_way: int = 0

    def __bool__(self) -> bool:
        return bool(self.untrained or self.under_way)

    def __str__(self) -> str:
        parts = {"whose training is in no checkpoint": self.untrained, "that were under way": self.under_way}
        said = " and ".join(f"{count:,} {which}" for which, count in parts.items() if count)
        return f"samples issued again: {said}"


class Ledger:
    """Open in one process at a time. Its methods may be called from several threads."""

    def __init__(self, path: str | Path) -> None:
        """Makes the file, or goes on in one that is there. Raises LedgerError."""
        self.path = Path(path)
        self._lock = threading.RLock()
        self._db = open_for_writing(self.path)
        with explained(self.path):
            live = self._db.execute(f"SELECT * FROM samples WHERE state IN {_sql(LIVE)}")
            self._live = {row[0]: Entry.of_row(row) for row in live}
            lowest, highest = self._db.execute("SELECT MIN(id), MAX(id) FROM samples").fetchone()
        self.lowest = min(0, lowest or 0)  # number of a sample so far; 0 where none is negative
        self.highest = -1 if highest is None else highest  # number of a sample so far; -1 where all are negative
        self._changed: dict[int, Entry] = {}  # not written yet; so are _changes
        self._changes: list[tuple[Any, ...]] = []
        self._failure: LedgerError | None = None
        self._dirty, self._closed = threading.Event(), False
        threading.Thread(target=self._flush_now_and_then, name="ledger", daemon=True).start()

    def issue(self, samples: Iterable[tuple[int, int | None]], note: str | None = None) -> None:
        """(number, group) of samples that are handed out."""
        samples = list(samples)
        with self._lock:
            entries = self._may_be(State.ISSUED, [id for id, _ in samples], new=True)
            for entry, (_, group) in zip(entries, samples, strict=True):
                entry.group_id = group
                entry.reason = None
                entry.issues += 1
                self._put(entry, State.ISSUED, note or ("issued again" if entry.issues > 1 else None))

    def generate(self, ids: Iterable[int], rollout_id: int) -> None:
        with self._lock:
            for entry in self._may_be(State.GENERATING, list(ids)):
                self._put(entry, State.GENERATING, f"{GENERATED_FOR} {rollout_id}")

    def put_back(self, outcomes: Sequence[Outcome]) -> None:
        """Samples wait to be handed out again."""
        with self._lock:
            for entry, outcome in zip(self._may_be(State.ISSUED, [o.id for o in outcomes]), outcomes, strict=True):
                entry.tell(outcome)
                entry.rollout = None
                self._put(entry, State.ISSUED, f"put back with {outcome.response_tokens} tokens of a response")

    def finish(self, outcomes: Sequence[Outcome], rollout_id: int | None = None) -> None:
        """Samples are generated and graded. With `rollout_id`, they are in the batch of that rollout."""
        with self._lock:
            for entry, outcome in zip(self._may_be(State.FINISHED, [o.id for o in outcomes]), outcomes, strict=True):
                entry.tell(outcome)
                entry.rollout = rollout_id
                self._put(
                    entry, State.FINISHED, None if rollout_id is None else f"in the batch of rollout {rollout_id}"
                )

    def train(self, rollout_id: int) -> int:
        """All that is in the batch of a rollout has been trained on. Returns how many samples that are."""
        with self._lock:
            batch = [e.id for e in self._live.values() if e.state is State.FINISHED and e.rollout == rollout_id]
            for entry in self._may_be(State.TRAINED, batch):
                self._put(entry, State.TRAINED, None)
        return len(batch)

    def drop(self, ids: Iterable[int], reason: str) -> None:
        if not reason:
            raise LedgerError("nothing is dropped without a reason")
        reason = reason.encode("utf-8", "backslashreplace").decode()  # a label in it may be half a surrogate pair
        with self._lock:
            for entry in self._may_be(State.DROPPED, list(ids)):
                entry.reason = reason
                self._put(entry, State.DROPPED, reason)

    def drop_rest(self, reason: str) -> int:
        """Drops whatever is under way. Returns how many samples that are."""
        with self._lock:
            left = list(self._live)
            self.drop(left, reason)
        return len(left)

    def mark(self, rollout_id: int) -> str:
        """Remembers that this is the moment of the checkpoint of a rollout; on the disk when this returns. Returns its
        token."""
        token = secrets.token_hex(8)
        with self._lock, explained(self.path):
            self.flush()
            self._db.execute("PRAGMA synchronous = FULL")  # what is saved next must not outlive it
            self._db.execute(
                "INSERT OR REPLACE INTO checkpoints SELECT ?, ?, COALESCE(MAX(number), 0), ? FROM changes",
                (rollout_id, token, time.time()),
            )
            self._db.execute("PRAGMA synchronous = NORMAL")
        return token

    def roll_back(self, rollout_id: int, token: str | None) -> RolledBack:
        """Goes on from the checkpoint of a rollout; -1 is a start without any.

        What is in the batches up to that rollout counts as trained, since the checkpoint holds it. What else was under
        way when it was saved is issued. What was first issued after it is dropped, until the data source issues it
        again. Raises LedgerError when this ledger is not that of the checkpoint.
        """
        with self._lock, explained(self.path):
            self.flush()
            if self.highest < 0 and self.lowest == 0:
                return RolledBack()
            saved_at = self._moment_of(rollout_id, token)
            self._db.execute("DELETE FROM checkpoints WHERE rollout > ?", (rollout_id,))
            back = f"{ROLLED_BACK} to " + ("the start" if rollout_id < 0 else f"the checkpoint of rollout {rollout_id}")
            changed = (
                f"SELECT sample FROM changes WHERE number > ? UNION SELECT id FROM samples WHERE state IN {_sql(LIVE)}"
            )
            then = "SELECT MAX(number) FROM changes WHERE sample = s.id AND number <= ?"
            rows = self._db.execute(
                f"SELECT s.*, c.state, c.rollout, c.note FROM ({changed}) AS l JOIN samples AS s ON s.id = l.sample"
                f" LEFT JOIN changes AS c ON c.number = ({then}) ORDER BY s.id",
                (saved_at, saved_at),
            ).fetchall()
            untrained = under_way = 0
            for *row, state, rollout, note in rows:
                entry = Entry.of_row(row)
                in_checkpoint = (
                    state in (State.FINISHED, State.TRAINED) and rollout is not None and rollout <= rollout_id
                )
                if not in_checkpoint:
                    untrained += entry.state is State.TRAINED
                    under_way += entry.state in LIVE
                if in_checkpoint:
                    self._restore(entry, State.TRAINED, "the checkpoint holds it", rollout)
                elif state in LIVE:
                    self._restore(entry, State.ISSUED, back, None)
                else:
                    self._restore(
                        entry, State.DROPPED, back if state is None or note.startswith(ROLLED_BACK) else note, None
                    )
            self.flush()
        return RolledBack(untrained, under_way)

    def _moment_of(self, rollout_id: int, token: str | None) -> int:
        """The number of the last change before a checkpoint was saved."""
        if rollout_id < 0:
            return 0
        found = self._db.execute("SELECT token, change FROM checkpoints WHERE rollout = ?", (rollout_id,)).fetchone()
        if found is None or found[0] != token:
            raise LedgerError(
                f"{self.path} does not know the checkpoint of rollout {rollout_id}, so it is the ledger of another run:"
                " name a new directory (--run-name), whose ledger will begin with this checkpoint"
            )
        return found[1]

    def _restore(self, entry: Entry, state: State, note: str, rollout: int | None) -> None:
        reason = note if state is State.DROPPED else None
        if (entry.state, entry.rollout, entry.reason) != (state, rollout, reason):
            entry.rollout, entry.reason = rollout, reason
            self._put(entry, state, note)

    def flush(self) -> None:
        """Hands all changes to the operating system: they outlive this process."""
        with self._lock, explained(self.path):
            if not self._changes:
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT INTO changes VALUES (NULL, ?, ?, ?, ?, ?)", self._changes)
                rows = (entry.row() for entry in self._changed.values())
                self._db.executemany(
                    f"INSERT OR REPLACE INTO samples VALUES ({', '.join('?' * len(Entry.__slots__))})", rows
                )
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._changes.clear()
            self._changed.clear()

    def close(self) -> None:
        with self._lock, explained(self.path):
            if not self._closed:
                self.flush()
                self._closed = True
                self._dirty.set()
                self._db.close()

    def _flush_now_and_then(self) -> None:
        while not self._closed:
            self._dirty.wait()
            time.sleep(FLUSH_S)
            with self._lock:
                self._dirty.clear()
                try:
                    if not self._closed:
                        self.flush()
                except LedgerError as error:
                    self._failure = error  # told to whoever makes the next change

    def _may_be(self, state: State, ids: list[int | None], *, new: bool = False) -> list[Entry]:
        """The entries of `ids`, all of which may become `state`; with `new` also such as were never issued."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if len(set(ids)) < len(ids):
            twice = next(id for i, id in enumerate(ids) if id in ids[:i])
            raise LedgerError(f"sample {twice} is named twice among those to be {state}")
        entries = [self._find(id) or Entry(id, None) for id in ids]
        for entry in entries:
            origin = None if entry.is_rolled_back else entry.state
            if state not in LEGAL[origin] or (origin is None and not new):
                raise LedgerError(_illegal(entry, state))
        return entries

    def _put(self, entry: Entry, state: State, note: str | None) -> None:
        entry.state, entry.since = state, time.time()
        self._changed[entry.id] = entry
        self._changes.append((entry.id, state.value, entry.since, entry.rollout, note))
        if state in LIVE:
            self._live[entry.id] = entry
        else:
            self._live.pop(entry.id, None)
        self.lowest, self.highest = min(self.lowest, entry.id), max(self.highest, entry.id)
        if not self._dirty.is_set():
            self._dirty.set()

    def state_of(self, id: int) -> State | None:
        """None for a sample that was never issued."""
        with self._lock:
            entry = self._find(id)
            return entry and entry.state

    def _find(self, id: int | None) -> Entry | None:
        if id is None:
            return None
        if (found := self._live.get(id) or self._changed.get(id)) is not None:
            return found
        if not self.lowest <= id <= self.highest:
            return None
        with explained(self.path):
            row = self._db.execute("SELECT * FROM samples WHERE id = ?", (id,)).fetchone()
        return row and Entry.of_row(row)


def _illegal(entry: Entry, state: State) -> str:
    if entry.state is None:
        return f"sample {entry.id} was never issued, so it can't be {state}"
    more = entry.reason or (None if entry.rollout is None else f"rollout {entry.rollout}")
    return (
        f"sample {entry.id} is {entry.state}{f' ({more})' if more else ''}, so it can't be {state}: a data source must"
        " give each sample a number of its own (or None) as Sample.index, and a rollout function may return or put"
        " back each only once"
    )


def _sql(states: Iterable[State]) -> str:
    return f"({', '.join(f'{state.value!r}' for state in states)})"
