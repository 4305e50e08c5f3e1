"""The ledger's file, ledger.db in the directory of a run: SQLite in WAL mode, written by one process, read by any
number meanwhile.

Its schema is below, and in docs/buffer.md. All errors of SQLite come out as LedgerError, with what to do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = 1
WAIT_S = 10.0  # for another process that has the file locked

SCHEMA = f"""
CREATE TABLE samples (
    id INTEGER PRIMARY KEY,    -- Sample.index: the same after a restart; negative where no data source gave one
    group_id INTEGER,          -- Sample.group_index: of the prompt
    state TEXT NOT NULL CHECK (state IN ('issued', 'generating', 'finished', 'trained', 'dropped')),
    since REAL NOT NULL,       -- seconds since 1970
    issues INTEGER NOT NULL,   -- how often it was handed out: more than once if it was put back, or after a restart
    rollout INTEGER,           -- whose batch it is in
    tokens INTEGER,            -- prompt and response
    response_tokens INTEGER,
    reward REAL,
    weight_versions TEXT,      -- those that its tokens were sampled from, in order: "3 4"
    reason TEXT,               -- why it was dropped
    CHECK ((state = 'dropped') = (reason IS NOT NULL))
);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY,
    sample INTEGER NOT NULL,
    state TEXT NOT NULL,       -- from then on
    time REAL NOT NULL,        -- seconds since 1970
    rollout INTEGER,
    note TEXT
);
CREATE INDEX changes_of_a_sample ON changes (sample);
CREATE TABLE checkpoints (
    rollout INTEGER PRIMARY KEY,
    token TEXT NOT NULL,       -- which the data buffer's part of the checkpoint holds, too
    change INTEGER NOT NULL,   -- the last one before it
    time REAL NOT NULL
);
CREATE VIEW groups AS          -- a group is where the last of its samples is, of those that were not dropped
    SELECT group_id, CASE MIN(CASE state WHEN 'issued' THEN 0 WHEN 'generating' THEN 1 WHEN 'finished' THEN 2
        WHEN 'trained' THEN 3 ELSE 4 END) WHEN 0 THEN 'issued' WHEN 1 THEN 'generating' WHEN 2 THEN 'finished'
        WHEN 3 THEN 'trained' ELSE 'dropped' END AS state, COUNT(*) AS samples, AVG(reward) AS reward
    FROM samples GROUP BY group_id;
PRAGMA user_version = {VERSION};
"""


class LedgerError(RuntimeError):
    """A change that can't be, or a file that can't be used; the message says which, and what to do."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Made where it is not there. Transactions are the caller's, who may be any thread, one at a time."""
    with explained(path):
        db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        if _version(db) == 0:
            db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT")
        _check_version(path, db)
        return db


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Raises LedgerError where there is none. Sees what has been written so far, and goes on seeing what is written."""
    if not path.is_file():
        raise LedgerError(
            f"{path.parent} has no {path.name}: the run did not come to its first sample, or kept no ledger"
        )
    with explained(path):
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=WAIT_S)
        _check_version(path, db)
        return db


@contextmanager
def explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"{path} can't be used: {_advice(str(error))}") from error


def _version(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def _check_version(path: Path, db: sqlite3.Connection) -> None:
    if (version := _version(db)) == 0:
        raise LedgerError(f"{path} is empty, or no ledger (version 0)")
    if version != VERSION:
        raise LedgerError(f"{path} is a ledger of version {version}; this slime knows version {VERSION}")


def _advice(text: str) -> str:
    if "full" in text:
        return "the disk is full: free some space, and go on from the last checkpoint"
    if "locked" in text:
        return f"another process has had it locked for {WAIT_S:g} s: only one may write to it"
    if "not a database" in text or "malformed" in text:
        return (
            f"it is damaged ({text}): move it away, and the run begins a new one with the checkpoint, which does not"
            " know what became of the samples before"
        )
    return text
