"""Ledger: one state a sample, legal changes alone, whatever is killed. One test starts processes; it takes 8 s."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.data.ledger import LEGAL, LIVE, ROLLED_BACK, Ledger, RolledBack, State
from slime.data.ledger_file import LedgerError, open_for_reading
from slime.data.outcome import Outcome, outcomes
from slime.data.sample import Sample

KILLS = 8


@pytest.fixture
def ledger(tmp_path: Path):
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        yield ledger


def outcome(id: int, **values) -> Outcome:
    return Outcome(
        id, id // 2, **{"tokens": 30, "response_tokens": 20, "reward": 1.0, "weight_versions": ("4", "5")} | values
    )


def issue(ledger: Ledger, *ids: int) -> None:
    ledger.issue((id, id // 2) for id in ids)


def states(ledger: Ledger) -> dict[int, str]:
    ledger.flush()
    with closing(open_for_reading(ledger.path)) as db:
        return dict(db.execute("SELECT id, state FROM samples"))


def notes(ledger: Ledger, id: int) -> list[tuple[str, str | None]]:
    ledger.flush()
    with closing(open_for_reading(ledger.path)) as db:
        return db.execute("SELECT state, note FROM changes WHERE sample = ? ORDER BY number", (id,)).fetchall()


def batch(ledger: Ledger, rollout: int, *ids: int) -> None:
    """Takes samples from nothing into the batch of a rollout."""
    issue(ledger, *ids)
    ledger.generate(ids, rollout)
    ledger.finish([outcome(id) for id in ids], rollout)


def test_the_life_of_a_sample(ledger):
    batch(ledger, 3, 7)
    assert ledger.train(3) == 1
    assert notes(ledger, 7) == [
        ("issued", None), ("generating", "for rollout 3"), ("finished", "in the batch of rollout 3"), ("trained", None),
    ]  # fmt: skip
    with closing(open_for_reading(ledger.path)) as db:
        (row,) = db.execute(
            "SELECT group_id, state, issues, rollout, tokens, response_tokens, reward, weight_versions FROM samples"
        )
    assert row == (3, "trained", 1, 3, 30, 20, 1.0, "4 5")


def test_training_takes_what_is_in_the_batch_and_nothing_else(ledger):
    batch(ledger, 0, 0, 1)
    batch(ledger, 1, 2)
    issue(ledger, 3)
    ledger.finish([outcome(3)])
    assert ledger.train(0) == 2
    assert states(ledger) == {0: "trained", 1: "trained", 2: "finished", 3: "finished"}


@pytest.mark.parametrize("state", list(State))
def test_every_change_that_is_not_legal_is_refused(ledger, state):
    """From every state, by every verb: it is done where LEGAL says so, and else nothing changes."""
    verbs = {
        State.ISSUED: lambda: issue(ledger, 0),
        State.GENERATING: lambda: ledger.generate([0], 1),
        State.FINISHED: lambda: ledger.finish([outcome(0)], 1),
        State.DROPPED: lambda: ledger.drop([0], "why not"),
    }
    issue(ledger, 0)
    if state is State.GENERATING:
        ledger.generate([0], 1)
    elif state is not State.ISSUED:
        ledger.drop([0], "a reason") if state is State.DROPPED else ledger.finish([outcome(0)], 1)
    if state is State.TRAINED:
        ledger.train(1)
    for target, verb in verbs.items():
        if target not in LEGAL[state]:
            with pytest.raises(LedgerError, match=f"sample 0 is {state}.* so it can't be {target}"):
                verb()
    assert states(ledger) == {0: state}


def test_a_reason_that_is_no_text_is_written_as_one(ledger):
    issue(ledger, 1)
    ledger.drop([1], "no reward: the label is '\ud83d'")
    assert notes(ledger, 1)[-1] == ("dropped", r"no reward: the label is '\ud83d'")


def test_a_refused_change_leaves_the_others_of_its_call(ledger):
    batch(ledger, 0, 0)
    ledger.train(0)
    issue(ledger, 1)
    with pytest.raises(LedgerError, match=r"sample 0 is trained \(rollout 0\)"):
        ledger.generate([1, 0], 1)
    assert states(ledger) == {0: "trained", 1: "issued"}
    with pytest.raises(LedgerError, match="sample 1 is named twice"):
        ledger.generate([1, 1], 1)
    with pytest.raises(LedgerError, match="sample 9 was never issued"):
        ledger.generate([9], 1)
    with pytest.raises(LedgerError, match="without a reason"):
        ledger.drop([1], "")


def test_what_is_put_back_is_issued_again_with_what_it_has(ledger):
    issue(ledger, 0)
    ledger.generate([0], 0)
    ledger.put_back([outcome(0, tokens=70, response_tokens=60, reward=None)])
    issue(ledger, 0)
    assert notes(ledger, 0)[2:] == [("issued", "put back with 60 tokens of a response"), ("issued", "issued again")]


def test_a_group_is_where_its_last_sample_is(ledger):
    batch(ledger, 0, 0)
    issue(ledger, 1, 2, 3)
    ledger.drop([2, 3], "too hard")
    ledger.flush()
    with closing(open_for_reading(ledger.path)) as db:
        assert dict(db.execute("SELECT group_id, state FROM groups")) == {0: "issued", 1: "dropped"}
    ledger.drop([1], "too long")
    ledger.flush()
    with closing(open_for_reading(ledger.path)) as db:
        assert dict(db.execute("SELECT group_id, state FROM groups"))[0] == "finished"


def test_it_goes_on_where_it_was_closed(tmp_path):
    with closing(Ledger(tmp_path / "ledger.db")) as first:
        batch(first, 0, 0, 1)
        issue(first, -1)
        first.train(0)
    with closing(Ledger(tmp_path / "ledger.db")) as second:
        assert (second.lowest, second.highest) == (-1, 1)
        with pytest.raises(LedgerError, match="sample 1 is trained"):
            issue(second, 1)
        second.generate([-1], 1)
        assert second.drop_rest("the run ended") == 1
        assert states(second) == {0: "trained", 1: "trained", -1: "dropped"}


def test_changes_are_written_by_themselves(ledger):
    issue(ledger, 0)
    deadline = time.monotonic() + 30
    with closing(open_for_reading(ledger.path)) as db:
        while not db.execute("SELECT COUNT(*) FROM samples").fetchone()[0]:
            assert time.monotonic() < deadline, "nothing was written"
            time.sleep(0.05)


def test_a_write_that_failed_in_the_background_is_told(ledger):
    with closing(sqlite3.connect(ledger.path)) as other:
        other.execute("DROP TABLE changes")
    issue(ledger, 0)
    deadline = time.monotonic() + 30
    while ledger._failure is None:
        assert time.monotonic() < deadline, "the failure was not noticed"
        time.sleep(0.05)
    with pytest.raises(LedgerError, match="can't be used: no such table: changes"):
        ledger.generate([0], 0)
    ledger._changes.clear()


FULL_DISK = """
import subprocess, sys
from pathlib import Path
from slime.data.ledger import Ledger
from slime.data.ledger_file import LedgerError
disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
ledger = Ledger(disk / "ledger.db")
ledger.issue([(0, 0)])
ledger.flush()
(disk / "ballast").touch()
with (disk / "ballast").open("ab", buffering=0) as ballast:
    try:
        while ballast.write(bytes(4096)):
            pass
    except OSError:
        pass
def refused(act):
    try:
        act()
    except LedgerError as error:
        print(error)
ledger.issue((id, 0) for id in range(1, 5000))
refused(ledger.flush)
refused(lambda: ledger.mark(0))
(disk / "ballast").unlink()
ledger.close()
print(sorted(Ledger(disk / "ledger.db")._live) == list(range(5000)))
"""


def test_a_disk_that_is_full_is_said_and_what_waits_is_written_once_there_is_room(tmp_path):
    """A real one, mounted for this process alone."""
    command = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else []), sys.executable, "-c", FULL_DISK]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=60)
    if "mount: " in done.stderr or "unshare: " in done.stderr:
        pytest.skip(f"no disk may be mounted here: {done.stderr}")
    full = f"{tmp_path}/ledger.db can't be used: the disk is full: free some space, and go on from the last checkpoint"
    assert done.stdout.splitlines() == [full, full, "True"], done.stderr


# Restarts.


def test_roll_back_to_a_checkpoint(ledger):
    batch(ledger, 0, 0, 1)
    batch(ledger, 1, 2, 3)
    issue(ledger, 4, 5, 6)  # under way when the checkpoint is saved
    ledger.generate([5], 2)
    ledger.finish([outcome(6)])
    issue(ledger, 7)
    ledger.drop([7], "zero variance")
    ledger.train(0)
    token = ledger.mark(1)
    ledger.train(1)
    ledger.finish([outcome(5), outcome(6)], 2)
    ledger.train(2)
    ledger.drop([4], "too old")
    batch(ledger, 3, 8)
    ledger.train(3)
    issue(ledger, 9)

    back = ledger.roll_back(1, token)
    assert back == RolledBack(untrained=3, under_way=1)
    assert states(ledger) == {
        **dict.fromkeys((0, 1, 2, 3), "trained"),
        **dict.fromkeys((4, 5, 6), "issued"),
        **dict.fromkeys((7, 8, 9), "dropped"),
    }
    assert notes(ledger, 5)[-1] == ("issued", "rolled back to the checkpoint of rollout 1")
    assert notes(ledger, 8)[-1] == ("dropped", "rolled back to the checkpoint of rollout 1")
    before = notes(ledger, 7)
    assert ledger.roll_back(1, token) == RolledBack(0, 3), "killed again before anything was done"
    assert notes(ledger, 7) == before and notes(ledger, 8)[-1][0] == "dropped"

    issue(ledger, 8)  # as the data source does when it goes on
    with pytest.raises(LedgerError, match=r"sample 7 is dropped \(zero variance\)"):
        issue(ledger, 7)
    assert states(ledger)[8] == "issued"


def test_what_the_checkpoint_holds_is_trained_even_if_nobody_could_say_so(ledger):
    batch(ledger, 0, 0)
    token = ledger.mark(0)
    assert ledger.roll_back(0, token) == RolledBack()
    assert states(ledger) == {0: "trained"} and notes(ledger, 0)[-1][1] == "the checkpoint holds it"


def test_a_start_without_a_checkpoint_takes_all_back(ledger):
    assert ledger.roll_back(-1, None) == RolledBack()
    batch(ledger, 0, 0)
    ledger.train(0)
    issue(ledger, 1)
    assert (back := ledger.roll_back(-1, None)) == RolledBack(untrained=1, under_way=1)
    assert str(back) == "samples issued again: 1 whose training is in no checkpoint and 1 that were under way"
    assert str(RolledBack(0, 8)) == "samples issued again: 8 that were under way"
    assert states(ledger) == {0: "dropped", 1: "dropped"}
    batch(ledger, 0, 0, 1)
    assert ledger.train(0) == 2


def test_the_ledger_of_another_run_is_refused(ledger, tmp_path):
    with closing(Ledger(tmp_path / "new.db")) as new:
        assert new.roll_back(3, "token") == RolledBack(), "a new directory: there is nothing to take back"
    batch(ledger, 0, 0)
    ledger.mark(0)
    for rollout, token in ((0, "another"), (1, None)):
        with pytest.raises(LedgerError, match=f"does not know the checkpoint of rollout {rollout}.*--run-name"):
            ledger.roll_back(rollout, token)


def sound(path: Path) -> None:
    """Every sample is in the one state that its last change says, and every change was legal, or a restart's."""
    with closing(open_for_reading(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        state: dict[int, str | None] = {}
        trained: dict[int, int] = {}
        for sample, new, note in db.execute("SELECT sample, state, note FROM changes ORDER BY number"):
            old = state.get(sample)
            restart = (note or "").startswith(ROLLED_BACK) or note == "the checkpoint holds it" or old == "rolled back"
            assert restart or State(new) in LEGAL[old and State(old)], f"sample {sample}: {old} -> {new}"
            trained[sample] = (trained.get(sample, 0) + (new == "trained")) * (not (note or "").startswith(ROLLED_BACK))
            state[sample] = "rolled back" if new == "dropped" and note.startswith(ROLLED_BACK) else new
        assert max(trained.values(), default=0) <= 1, "trained twice"
        rows = dict(db.execute("SELECT id, state FROM samples"))
        assert rows == {sample: "dropped" if last == "rolled back" else last for sample, last in state.items()}


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_whatever_is_done_the_ledger_is_sound(tmp_path_factory, data):
    """Verbs at random on a few samples; those that are refused change nothing, checkpoints are gone back to."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    ledger, tokens = Ledger(path), {-1: None}
    some = st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True)
    for rollout in range(data.draw(st.integers(1, 5))):
        for verb in data.draw(st.lists(st.sampled_from("igfbtdpr"), max_size=6)):
            ids = data.draw(some)
            try:
                match verb:
                    case "i":
                        issue(ledger, *ids)
                    case "g":
                        ledger.generate(ids, rollout)
                    case "f":
                        ledger.finish([outcome(id) for id in ids])
                    case "b":
                        ledger.finish([outcome(id) for id in ids], rollout)
                    case "t":
                        ledger.train(rollout)
                    case "d":
                        ledger.drop(ids, "chance")
                    case "p":
                        ledger.put_back([outcome(id) for id in ids])
                    case "r":
                        ledger.close()
                        ledger = Ledger(path)
            except LedgerError as error:
                assert "so it can't be" in str(error)
        tokens[rollout] = ledger.mark(rollout)
        if data.draw(st.booleans()):
            back = data.draw(st.sampled_from(sorted(tokens)))
            ledger.roll_back(back, tokens[back])
            tokens = {r: token for r, token in tokens.items() if r <= back}
    ledger.close()
    sound(path)


def test_killed_at_any_moment_all_samples_are_in_one_legal_state(tmp_path):
    """Each process goes on with what the one before it left, and is killed somewhere in it."""
    path, dice = tmp_path / "ledger.db", random.Random(1)
    for seed in range(KILLS):
        command = [sys.executable, "-m", "tests.data.ledger_writer", str(path), str(seed)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        killer = threading.Timer(60, process.kill)
        killer.start()
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(dice.uniform(0, 0.5))
        assert process.poll() is None, process.stderr.read()
        process.kill()
        killer.cancel()
        process.communicate()
        sound(path)
    with closing(open_for_reading(path)) as db:
        counts = dict(db.execute("SELECT state, COUNT(*) FROM samples GROUP BY state"))
    assert counts["trained"] > 100, counts


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_files_that_are_no_ledger(tmp_path, content):
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerError, match=r"has no ledger\.db"):
        open_for_reading(path)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="version 0" if not content else "damaged.*move it away"):
        open_for_reading(path)


def test_outcomes_of_samples_that_fanned_out():
    parts = [
        Sample(index=3, group_index=1, tokens=[1] * 9, response_length=4, weight_versions=["2"]),
        Sample(
            index=3, group_index=1, tokens=[1] * 7, response_length=2, weight_versions=["2", "3"], remove_sample=True
        ),
        Sample(tokens=[1], response_length=0, remove_sample=True),
    ]
    first, second = outcomes(zip(parts, [1.0, 0.0, None], strict=True), [None, "refused", "refused"])
    assert first == Outcome(3, 1, 16, 6, 0.5, ("2", "3"))
    assert second == Outcome(None, None, 1, 0, None, (), "refused")
    assert set(LIVE) == set(State) - {State.TRAINED, State.DROPPED}
