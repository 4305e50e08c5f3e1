"""The data buffer's process: notes that are sent together, a data source that hangs, last notes that can't be written.

Takes 5 s.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from slime.cluster import buffer as module
from slime.cluster import job as job_module
from slime.cluster.buffer import Buffer
from slime.cluster.job import Job
from slime.cluster.rollouts import RolloutActor
from slime.cluster.wait import ActorFailed, Stalled, wait
from slime.config import Config, load
from slime.config.hooks import Hook
from slime.data.errors import DataError
from slime.data.ledger_file import LedgerError, open_for_reading
from slime.data.outcome import Outcome
from slime.observe import Console, RunDir

DEADLINE_S = 60.0
SOURCES = "tests.cluster.sources"


class Life:
    """An open buffer."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.buffer = Buffer.start(config)
        wait(self.buffer.open(config), "the buffer to open", DEADLINE_S)
        self.ledger = RunDir(Path(config.run_dir)).ledger_file

    def take(self) -> tuple[int, int]:
        """The numbers of the two samples of another group."""
        ((first, second),) = self.buffer.get_samples(1)
        return first.index, second.index

    def became(self, id: int, *states: str) -> bool:
        """Whether the ledger comes to say so."""
        deadline = time.monotonic() + DEADLINE_S
        while self.changes(id) != ["issued", *states]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def changes(self, id: int) -> list[str]:
        with closing(open_for_reading(self.ledger)) as db:
            return [
                state for (state,) in db.execute("SELECT state FROM changes WHERE sample = ? ORDER BY number", (id,))
            ]


@pytest.fixture(scope="module")
def make(session, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Life]]:
    lives: list[Life] = []

    def end() -> None:
        for life in lives:
            ray.kill(life.buffer.actor)
            with pytest.raises(RayActorError):
                while True:  # for a call may come before the kill
                    ray.get(life.buffer.actor.length.remote(), timeout=DEADLINE_S)
        lives.clear()

    def make(source: str) -> Life:
        end()  # there is one at a time, as its name is
        words = ["--hf-checkpoint", str(tiny_model), "--data-source-path", f"{SOURCES}.{source}", "--num-rollout", "1"]
        words += ["--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--rm-type", "random"]
        words += ["--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"]
        lives.append(Life(load([*words, "--run-dir", str(tmp_path_factory.mktemp("run"))])))
        return lives[-1]

    yield make
    end()


@pytest.fixture(scope="module")
def life(make) -> Life:
    return make("Counting")


@pytest.fixture(scope="module")
def hanging(make) -> Life:
    return make("Hanging")


def outcome(id: int) -> Outcome:
    return Outcome(id, id // 2, tokens=3, response_tokens=2, reward=1.0)


def test_notes_are_taken_in_the_order_in_which_they_were_told(life):
    """Any other order is refused."""
    ids = [*life.take(), *life.take()]
    for id in ids:
        life.buffer.generating([id], 0)
        life.buffer.finished([outcome(id)])
    life.buffer.drop(ids[3:], "too easy")
    life.buffer.batched(0, [outcome(id) for id in ids[:3]])
    life.buffer.noted()
    assert life.became(ids[0], "generating", "finished", "finished")
    assert life.became(ids[3], "generating", "finished", "dropped")


def test_one_that_is_refused_is_told_once_and_the_others_are_noted(life):
    first, second = life.take()
    life.buffer.generating([first], 0)
    life.buffer.drop([99], "nobody knows it")
    life.buffer.generating([second], 0)
    with pytest.raises(LedgerError, match="sample 99 was never issued"):
        life.buffer.noted()
    life.buffer.noted()
    assert life.became(first, "generating") and life.became(second, "generating")


def test_what_is_told_is_noted_though_nobody_asks_for_anything(life):
    first, _ = life.take()
    life.buffer.generating([first], 0)
    assert life.became(first, "generating")


def test_what_was_told_last_is_noted_when_the_rollouts_have_ended(life, monkeypatch):
    monkeypatch.setattr(module, "TELL_S", 3600.0)
    first, _ = life.take()
    life.buffer.finished([outcome(first)])
    RolloutActor(life.config, [], life.buffer, dp_size=0, logs=life.ledger.parent, token=None).close()
    assert life.became(first, "finished")


def test_what_could_not_be_sent_is_said_to_whoever_comes_next(life, monkeypatch):
    failed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: failed.set())
    buffer = Buffer(life.buffer.actor, life.buffer.name)
    buffer.drop([threading.Lock()], "a number that can't be pickled")
    assert failed.wait(DEADLINE_S), "the timer sent it"
    with pytest.raises(TypeError, match="pickle"):
        buffer.get_samples(1)


@ray.remote(num_cpus=0)
class Rollout:
    """Calls a rollout function of the user's, as a Producer does."""

    def generate(self, buffer: Buffer) -> None:
        Hook("--rollout-function-path", "mine.generate", lambda: buffer.get_samples(1))()


@pytest.fixture
def rollout(session) -> Iterator[ray.actor.ActorHandle]:
    actor = Rollout.options(name="rollout").remote()
    yield actor
    ray.kill(actor)


def test_an_error_of_a_data_source_is_said_by_its_name_alone(make, rollout):
    with pytest.raises(ActorFailed) as failed:
        wait(rollout.generate.remote(make("Failing").buffer), "the rollout", DEADLINE_S)
    said = f"the rollout: DataError: --data-source-path {SOURCES}.Failing: get_samples raised ConnectionError: db gone"
    assert f"rollout (pid {pid_of(rollout)} on 127.0.0.1) failed while the driver was waiting for {said}" in str(
        failed.value
    )
    assert "--rollout-function-path" not in str(failed.value)


def test_a_buffer_that_dies_is_blamed_and_not_the_function_that_asked_it(make, rollout):
    buffer = make("Counting").buffer
    pid = pid_of(buffer.actor)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorFailed) as failed:
        wait(rollout.generate.remote(buffer), "the rollout", DEADLINE_S)
    assert str(failed.value).startswith(f"data-buffer (pid {pid} on 127.0.0.1) failed while the driver was waiting")
    assert "the rollout: its process died" in str(failed.value)
    assert "--rollout-function-path" not in str(failed.value)


def pid_of(actor: ray.actor.ActorHandle) -> int:
    return ray._private.state.actors(actor._actor_id.hex())["Pid"]


@pytest.fixture
def job(session) -> Job:
    config: Any = SimpleNamespace()
    return Job(config, session, Console(io.StringIO()))


def test_a_data_source_that_hangs_is_named(hanging, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    name = f"the data buffer with --data-source-path {SOURCES}.Hanging"
    with pytest.raises(DataError, match=f"{name} has not answered get_samples for 0.5 s: its data source hangs"):
        hanging.buffer.get_samples(1)


def test_what_does_not_end_in_time_is_named(job, hanging, monkeypatch):
    monkeypatch.setattr(job_module, "STOP_S", 0.5)
    job.stops = [lambda: [hanging.buffer.actor.get_samples.remote(1)]]
    with pytest.raises(Stalled, match=r"^waited 0.5 s .* for the run to end: .* still waiting for data-buffer"):
        job.__exit__(None, None, None)


@pytest.fixture(scope="module")
def full(make) -> Life:
    """The kernel refuses to let the files of this buffer's process grow, as on a full disk."""
    life = make("Counting")
    life.take()
    resource.prlimit(pid_of(life.buffer.actor), resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    return life


def test_a_run_whose_last_notes_can_not_be_written_fails(job, full):
    job.stops = [lambda: [full.buffer.close(whole=job.whole)]]
    said = (
        r"^data-buffer \(pid \d+ on 127.0.0.1\) failed while .* for it to end: LedgerError: .*ledger.db can't be used"
    )
    with pytest.raises(ActorFailed, match=said):
        job.__exit__(None, None, None)


def test_a_failure_to_end_is_said_and_does_not_hide_why_the_run_ends(job, full):
    job.stops = [lambda: [full.buffer.close(whole=job.whole)]]
    assert not job.__exit__(ValueError, ValueError("the first cause"), None)
    assert "LedgerError" in job.console.terminal.stream.getvalue()
