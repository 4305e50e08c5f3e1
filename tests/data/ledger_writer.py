"""A process that changes a ledger until it is killed, started by test_ledger.py: `python -m tests.data.ledger_writer
FILE SEED`.

Checkpoints are the file's own: half of the time it begins by rolling back to the last one, the other half it goes on.
"""

from __future__ import annotations

import random
import sqlite3
import sys

from slime.data import ledger as module
from slime.data.ledger import Ledger, State
from slime.data.outcome import Outcome

module.FLUSH_S = 0.001  # so that a kill is likely to meet a transaction
GROUP = 4


def outcome(id: int) -> Outcome:
    return Outcome(id, id // GROUP, 20, 10, 0.5, ("1", "2"))


def main(path: str, seed: int) -> None:
    dice = random.Random(seed)
    ledger = Ledger(path)
    rollout, next_id = start(ledger, path, dice)
    print("ready", flush=True)
    while True:
        ids = [*range(next_id, next_id + 4 * GROUP)]
        next_id += len(ids)
        ledger.issue((id, id // GROUP) for id in ids)
        ledger.generate(ids, rollout)
        dropped = dice.sample(ids, 2)
        ledger.drop(dropped, "a filter refused it")
        rest = [id for id in ids if id not in dropped]
        again = dice.sample(rest, 4)
        ledger.put_back([outcome(id) for id in again])
        ledger.issue((id, id // GROUP) for id in again)
        ledger.finish([outcome(id) for id in rest])
        ledger.finish([outcome(id) for id in rest[:-1]], rollout)  # the last one stays behind
        if rollout % 3 == 0:
            ledger.mark(rollout)
        ledger.train(rollout)
        rollout += 1


def start(ledger: Ledger, path: str, dice: random.Random) -> tuple[int, int]:
    """The next rollout, and the next number of a sample."""
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT rollout, token FROM checkpoints ORDER BY rollout DESC LIMIT 1").fetchone()
    if found and dice.random() < 0.5:
        ledger.roll_back(*found)
        return found[0] + 1, (ledger.highest // GROUP + 1) * GROUP
    ledger.drop(
        [id for id, entry in ledger._live.items() if entry.state is not State.FINISHED], "its process was killed"
    )
    return 3 * ledger.highest, (ledger.highest // GROUP + 1) * GROUP


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
