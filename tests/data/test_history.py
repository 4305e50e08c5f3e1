"""What is asked of a ledger is asked at one time, however much is in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from slime.data.history import Drop, History
from slime.data.ledger import Ledger


def test_drops_by_their_reasons_in_one_look(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.issue((id, 0) for id in range(13))
        ledger.drop(range(8), "often")
        ledger.drop([8, 9], "b")
        ledger.drop([10, 11], "a")
        ledger.flush()
    since = {id: float(id) for id in range(8)} | {8: 50.0, 9: 50.0, 10: 20.0, 11: 30.0}
    with closing(sqlite3.connect(ledger.path)) as db:
        db.executemany("UPDATE samples SET since = ? WHERE id = ?", [(time, id) for id, time in since.items()])
        db.commit()
    with closing(History(ledger.path)) as history:
        asked: list[str] = []
        history._db.set_trace_callback(asked.append)
        assert history.drops() == [
            Drop("often", 8, 7.0, [7, 6, 5, 4, 3, 2]),
            Drop("a", 2, 30.0, [11, 10]),
            Drop("b", 2, 50.0, [8, 9]),
        ]
        assert len(asked) == 1, "a look at all samples for each reason takes minutes where each has one of its own"


def test_what_a_restart_took_back_is_said_to_wait_for_its_turn(tmp_path: Path) -> None:
    """Samples 2 and 3 were first handed out after the checkpoint; 2 is again, since."""
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.issue([(0, 0), (1, 0)])
        ledger.drop([1], "too easy")
        token = ledger.mark(0)
        ledger.issue([(2, 1), (3, 1)])
        ledger.roll_back(0, token)
        ledger.issue([(2, 1)])
        ledger.flush()
        with closing(History(tmp_path / "ledger.db")) as history:
            said = {drop.reason: drop.examples for drop in history.drops()}
    assert said == {
        "rolled back to the checkpoint of rollout 0, and not handed out since": [3],
        "too easy": [1],
    }
