"""python -m slime.chaos where nothing comes to be killed. What it does to a run is in test_faults.py."""

from __future__ import annotations

import io
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from random import Random
from types import SimpleNamespace

import psutil
import pytest

from slime.chaos.__main__ import drawn, main, report
from slime.chaos.run import Kill, Run
from slime.config import from_command_line
from slime.data.history import Tally
from slime.data.ledger import Ledger
from slime.observe import RunDir
from slime.observe.terminal import Terminal
from slime.tiny import Tiny, make_tiny
from tests.inference.test_process import until


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("chaos") / "tiny", "sort", num_train=8, num_heldout=8, num_demos=8)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kill", "engin@3"], "'engin' is none of engine, router, trainer, critic, rollout, buffer, driver: did you"),
        (["--kill", "engine"], "'engine' names no rollout: write engine@3"),
        (["--kill", "engine@-1"], "'engine@-1' names no rollout: write engine@3"),
        ([], "nothing is to be killed: add --kill engine@1"),
    ],
)
def test_what_is_no_kill_is_said(capsys, words, said):
    assert said in refusal(capsys, *words)


def test_what_this_run_does_not_have_is_said_all_at_once(capsys, tiny):
    options = ["--config", "configs/tiny-grpo.yaml", "--hf-checkpoint", str(tiny.model), "--device", "cpu"]
    options += ["--prompt-data", str(tiny.train), "--eval-prompt-data", "sort", str(tiny.heldout), "--cpu-slots", "4"]
    said = refusal(capsys, "--kill", "engine@40", "--kill", "critic@1", "--kill", "driver@39", *options)
    assert "--kill engine@40: the last of --num-rollout 40 rollouts is 39" in said
    assert "--kill critic@1: this run starts no critic" in said
    assert "driver" not in said


def test_random_kills_are_those_of_the_seed_and_each_in_a_rollout_of_its_own(capsys, tiny):
    options = [
        "--config",
        "configs/tiny-grpo.yaml",
        "--hf-checkpoint",
        str(tiny.model),
        "--prompt-data",
        str(tiny.train),
    ]
    options += ["--eval-prompt-data", "sort", str(tiny.heldout), "--cpu-slots", "4", "--num-rollout", "4"]
    said = refusal(capsys, "--kill", "driver@1", "--random-kills", "3", *options)
    assert "--random-kills 3: in rollouts of their own; give a --num-rollout 1 larger" in said
    config = from_command_line(options)
    kills = drawn(5, range(9), config, Random(3))
    assert drawn(5, range(9), config, Random(3)) == kills != drawn(5, range(9), config, Random(4))
    assert len({kill.rollout_id for kill in kills}) == 5


def test_the_rollout_that_was_hit_is_told_where_it_is_a_later_one(tmp_path):
    """Rollout 1 began at 10 s and rollout 2 at 20 s, as far as this start of the run is concerned; 3 was in an earlier
    one."""
    directory = RunDir.create(tmp_path / "run")
    with closing(Ledger(directory.ledger_file)) as ledger:
        ledger.issue([(i, 0) for i in range(3)])
        for id, rollout_id in ((0, 3), (1, 1), (2, 2)):
            ledger.generate([id], rollout_id)
    with closing(sqlite3.connect(directory.ledger_file)) as db:
        db.executemany("UPDATE changes SET time = ? WHERE number = ?", [(1.0, 4), (10.0, 5), (20.0, 6)])
        db.commit()
    config = SimpleNamespace(run_dir=str(directory.path), save=None)
    run = Run(config, [], [], Random(0), quiet=True)
    run.known = 4
    assert [run._rollout_at(clock, 1) for clock in (15.0, 25.0)] == [1, 2]
    run.kills = [Kill("engine", 1, 7, 0.5, hit=1), Kill("engine", 1, 8, 0.5, hit=2)]
    shown = report(run, Tally(3, 0, 0, 3, 0), Terminal(io.StringIO()))
    assert [line.partition("0.50 s   ")[2] for line in shown[2:4]] == [
        "the run went on", "by then in rollout 2: the run went on"
    ]  # fmt: skip


def test_a_victim_that_has_ended_by_itself_is_not_taken_for_killed(monkeypatch, tmp_path):
    """Nobody has asked for its status yet, so that the system takes a signal for it."""
    with subprocess.Popen(["true"]) as ended, subprocess.Popen(["sleep", "60"]) as other:
        try:
            found = iter([psutil.Process(ended.pid), psutil.Process(other.pid)])
            until(lambda: psutil.Process(ended.pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
            monkeypatch.setattr("slime.chaos.run.one_of", lambda *_: next(found))
            monkeypatch.setattr(Run, "_begin", lambda *_: time.monotonic())
            monkeypatch.setattr(Run, "_length", lambda _: 0.0)
            monkeypatch.setattr(Run, "_rollout_at", lambda *_: 1)
            config = SimpleNamespace(
                run_dir=str(tmp_path), save=None, use_fault_tolerance=True, async_depth=0, max_weight_staleness=None
            )
            train = SimpleNamespace(poll=lambda: None)
            kill = Run(config, [], [], Random(0), quiet=True)._kill(train, Kill("engine", 1))
            assert kill.pid == other.pid and other.wait(10) == -signal.SIGKILL
        finally:
            other.kill()


def test_options_of_the_run_are_checked_as_train_does(capsys):
    assert "--rolout-batch-size" in refusal(capsys, "--kill", "engine@1", "--rolout-batch-size", "3")
