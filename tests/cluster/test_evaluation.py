"""When held-out prompts are asked; by a job that answers at once."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slime.cluster.evaluation import Evaluation
from slime.cluster.job import is_export_of
from slime.observe import Console, Recorder, RunDir


class Job:
    """Of which evaluations are due after every second rollout."""

    config = SimpleNamespace(evaluates_at=lambda done: done % 2 == 0, evaluates_beside_training=False)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def evaluate(self, done: int) -> int:
        self.asked.append(done)
        return done

    def wait_evaluation(self, ref: int) -> Any:
        return {"eval/sort": ref / 10}, {}


def test_an_evaluation_that_was_prevented_is_made_up_for_and_no_other(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    asked = []
    for first in (0, 1, 2, 2, 4):  # five processes of one run
        with Recorder(run, Console()) as recorder:
            Evaluation(job := Job(), recorder).begin_first(first)
        asked.append(job.asked)
    assert asked == [[0], [], [2], [], [4]]


def test_damaged_metrics_are_no_bar_to_evaluation(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    run.metrics_file.write_text("damaged\n{}\n")
    with Recorder(run, Console()) as recorder:
        Evaluation(job := Job(), recorder).begin_first(2)
    assert job.asked == [2]


def test_an_older_export_or_an_empty_directory_is_not_the_checkpoint_s(tmp_path: Path) -> None:
    export, checkpoint = tmp_path / "export", tmp_path / "checkpoint"
    checkpoint.mkdir()
    assert not is_export_of(export, checkpoint)
    export.mkdir()
    assert not is_export_of(export, checkpoint)
    (export / "config.json").touch()
    os.utime(checkpoint, (100, 100))
    for time, is_its in ((99, False), (100, True), (101, True)):
        os.utime(export, (time, time))
        assert is_export_of(export, checkpoint) is is_its
