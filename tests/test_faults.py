"""Servers and trainers killed in real runs: what can be replaced is, and nothing is lost (cases 32 and 33).

A model that knows nothing, so rewards are random; enough samples that a kill most likely hits a rollout.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from slime.data.history import History
from slime.data.ledger_file import open_for_reading
from tests.runs import (
    DECOUPLED,
    REPOSITORY,
    RUN_S,
    assert_nothing_left,
    column,
    driver,
    is_engine,
    is_router,
    marked,
    of_no_knowledge,
    wait_for,
)

PROMPTS, SAMPLES = 32, 8
END_S = 60.0  # a run that loses what it can't do without ends within this time


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [
        *of_no_knowledge(tmp_path_factory.mktemp("sort")),
        *("--rollout-batch-size", str(PROMPTS), "--n-samples-per-prompt", str(SAMPLES), "--cpu-slots", "3"),
        *("--rollout-max-response-len", "32", "--num-steps-per-rollout", "1", "--check-weight-update-equal"),
    ]


def trained(run: Path) -> dict[int, list[str]]:
    """Of each rollout that was trained on: which weights made the tokens of each of its samples."""
    with closing(open_for_reading(run / "ledger.db")) as ledger:
        rows = ledger.execute("SELECT rollout, weight_versions FROM samples WHERE state = 'trained'").fetchall()
    return {rollout: [versions for of, versions in rows if of == rollout] for rollout in {of for of, _ in rows}}


def test_engine_and_router_are_replaced_and_a_lost_trainer_ends_the_run(options, tmp_path):
    """After each update, that of the replaced engine too, engines are compared with the trainer."""
    two_engines = [*DECOUPLED, "--rollout-num-gpus", "2", "--num-rollout", "10000", "--use-fault-tolerance"]
    run, output = tmp_path / "run", tmp_path / "output"
    with driver(tmp_path, *options, *two_engines) as process:
        wait_for(run / "metrics.jsonl", '"rollout/step"', process)
        next(process for process in marked(tmp_path) if is_engine(process)).kill()
        wait_for(output, "serves again, with weights of version", process)
        next(process for process in marked(tmp_path) if is_router(process)).kill()
        wait_for(output, "router is up again", process)
        wait_for(run / "metrics.jsonl", r'"rollout/router_restarts": 1', process)
        (trainer,) = [process for process in marked(tmp_path) if "ray::TrainActor" in process.cmdline()[0]]
        trainer.kill()
        assert process.wait(END_S) == 1
        assert_nothing_left(tmp_path)
    said = output.read_text()
    assert re.search(r"warning: engine [01] has ended, killed by SIGKILL; it is started again", said)
    assert "warning: router has ended, killed by SIGKILL; it is started again" in said
    assert re.search(r"slime: trainer-0 \(pid \d+ on 127.0.0.1\) failed while .*: its process died", said)
    assert max(column(run, "rollout/engine_restarts")) == max(column(run, "rollout/router_restarts")) == 1
    with closing(History(run / "ledger.db")) as history:
        assert history.tally().twice == 0
    batches = trained(run)
    assert batches == {rollout: [str(rollout)] * (PROMPTS * SAMPLES) for rollout in range(len(batches))}
    assert len(batches) >= len(column(run, "rollout/step"))


def test_the_only_engine_is_replaced_in_the_middle_of_a_rollout(options, tmp_path):
    """By the command that users have for it."""
    command = [sys.executable, "-m", "slime.chaos", "--kill", "engine@1", "--json", "--run-dir", str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *options, "--rollout-num-gpus", "1", "--num-rollout", "3"],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=RUN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "serves again" in done.stderr
    found = json.loads(done.stdout)
    assert (found["lost"], found["twice"], found["starts"]) == (0, 0, 1)
    assert found["issued"] == found["trained"] + found["dropped"] >= found["trained"] == 3 * PROMPTS * SAMPLES
    assert trained(tmp_path / "run").keys() == {0, 1, 2}
