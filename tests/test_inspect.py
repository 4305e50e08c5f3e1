"""`python -m slime.inspect`: its answers, and what it says when there are none."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from slime.data.ledger import Ledger
from slime.data.outcome import Outcome
from slime.data.recording import write_rollout
from slime.data.sample import Sample
from slime.inspect import main
from slime.observe import RunDir


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of 6: rollout 4 is trained on ten of them, one is dropped, one waits; the run goes on."""
    run = RunDir.create(tmp_path_factory.mktemp("runs") / "mine")
    recording = run.path / "{rollout_id}.jsonl"
    run.config_file.write_text(f"logging:\n  save_debug_rollout_data: {recording}\n")
    ledger = Ledger(run.ledger_file)
    ledger.issue((id, id // 6) for id in range(12))
    ledger.generate(range(11), 4)
    ledger.put_back([Outcome(10, 1, 70, 60)])
    ledger.drop([11], "the group has no \x1b[31mvariance")
    ledger.finish([Outcome(id, id // 6, 30, 20 + id, id / 10, ("3", "4")) for id in range(10)], 4)
    ledger.mark(4)
    ledger.train(4)
    ledger.flush()
    write_rollout(
        str(recording).format(rollout_id=4),
        [
            [Sample(index=id, prompt=f"{id}+1=", response=f"it is\n{id + 1}", response_length=1, tokens=[1, 2])]
            for id in range(10)
        ],
    )
    yield run.path
    ledger.close()


@pytest.fixture
def ask(run, capsys):
    def ask(*words: str) -> str:
        assert main([str(run), *words]) == 0
        return capsys.readouterr().out

    return ask


def test_a_sample_and_all_that_happened_to_it(ask):
    lines = ask("sample", "7").splitlines()
    assert lines[0] == "sample 7 of group 1: trained"
    assert [line.split("s  ", 1)[1] for line in lines[2:6]] == [
        "issued", "generating   for rollout 4", "finished     in the batch of rollout 4", "trained",
    ]  # fmt: skip
    assert lines[7:] == [
        "reward      0.7",
        "tokens      30, 27 of them of the response",
        "weights     version 3 4",
        "prompt      7+1=",
        "response    it is⏎8",
    ]


def test_why_samples_were_dropped(ask):
    said = ask("dropped")
    assert "the group has no ·[31mvariance" in said, "nothing that a terminal would act on"
    assert "sample 11\n" in said


def test_the_best_and_the_worst_of_a_step(ask):
    lines = ask("step", "4").splitlines()
    assert lines[:2] == ["rollout 4: 10 samples in 2 groups, trained", "reward 0.450 in the mean, 0 to 0.9"]
    samples = [int(line.split()[0]) for line in lines if len(line.split()) == 6 and line.split()[0].isdigit()]
    assert samples == [9, 8, 7, 6, 5, 0, 1, 2, 3, 4]
    assert "           it is⏎10" in lines


def test_what_is_waiting(ask):
    said = ask("waiting")
    assert "issued            1  handed out, or waiting to be; those for longest:" in said
    assert re.search(r"  sample 10 \(group 1\) for .* s, 60 tokens of a response so far", said)
    assert "dropped" not in said


def test_all_of_it_on_one_screen(ask):
    said = ask()
    assert len(said.splitlines()) <= 24 and max(map(len, said.splitlines())) < 80
    assert "of 12 samples that were issued are now\n" in said
    assert "trained             10  in 2 groups; the last " in said
    assert "rollouts    4 to 4 have a batch; reward of the last 0.450" in said
    assert "checkpoints 4\n" in said


def fails(capsys, *words: str) -> str:
    assert main(list(words)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_demonstrations_have_no_reward(tmp_path, capsys):
    run = RunDir.create(tmp_path / "taught")
    with closing(Ledger(run.ledger_file)) as ledger:
        ledger.issue([(0, 0)])
        ledger.generate([0], 0)
        ledger.finish([Outcome(0, 0, 30, 20, None)], 0)
        ledger.flush()
    for words in ([], ["step", "0"]):
        assert main([str(run.path), *words]) == 0
    said = capsys.readouterr().out
    assert "rollouts    0 to 0 have a batch\n" in said and "in the mean" not in said


def test_what_is_not_there(run, capsys, tmp_path):
    assert "has no sample 99; its samples are 0 to 11" in fails(capsys, str(run), "sample", "99")
    assert "has no batch of rollout 5; the ledger has 4 to 4" in fails(capsys, str(run), "step", "5")
    assert f"{tmp_path / 'x'} holds no run" in fails(capsys, str(tmp_path / "x"))
    RunDir.create(tmp_path / "fresh")
    assert "has no ledger.db: the run did not come to its first sample" in fails(capsys, str(tmp_path / "fresh"))


def test_a_ledger_that_is_locked(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("slime.data.ledger_file.WAIT_S", 0.1)
    fresh = RunDir.create(tmp_path / "locked")
    Ledger(fresh.ledger_file).close()
    with closing(sqlite3.connect(fresh.ledger_file)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("CREATE TABLE mine (x)")
        assert "another process has had it locked for 0.1 s" in fails(capsys, str(fresh.path))


def test_the_command_as_a_user_runs_it(run):
    command = [sys.executable, "-m", "slime.inspect", str(run), "waiting"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "sample 10 (group 1)" in done.stdout, done.stderr
