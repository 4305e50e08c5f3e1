"""Waits end in time and name the first cause. Takes 10 s."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from slime.cluster import progress
from slime.cluster import wait as waits
from slime.cluster.buffer import BufferGone
from slime.cluster.pulse import Pulse
from slime.cluster.wait import ActorFailed, Stalled, wait
from slime.observe import Console


@ray.remote(num_cpus=0)
class Worker:
    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def die(self, seconds: float) -> None:
        print("the last words", flush=True, file=__import__("sys").stderr)
        time.sleep(seconds)
        os._exit(7)

    def ask(self, other: Any) -> Any:
        return ray.get(other.die.remote(0))

    def ask_as_a_buffer(self, other: Any) -> Any:
        try:
            return self.ask(other)
        except RayActorError as error:
            raise BufferGone(error.actor_id, str(error)) from None

    def lose_peer(self) -> None:
        raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1234")

    def mistake(self, seconds: float) -> None:
        time.sleep(seconds)
        raise KeyError("layers.0.bias")


@pytest.fixture
def workers(session) -> Iterator[list[Any]]:
    actors = [Worker.options(name=f"rank {i}").remote() for i in (0, 1)]
    ray.get([actor.pid.remote() for actor in actors], timeout=60)  # who starts late fails late
    yield actors
    for actor in actors:
        ray.kill(actor)
    deadline = time.monotonic() + 60
    while {"rank 0", "rank 1"} & set(ray.util.list_named_actors()):  # which the next ones are called, too
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_values_come_in_the_form_and_order_that_was_asked_for(session, workers):
    slow, fast = workers[0].sleep.remote(0.3), workers[1].pid.remote()
    pid = wait(fast, "a pid", 60)
    assert isinstance(pid, int)
    assert wait([slow, fast, slow], "both", 60) == ["slept", pid, "slept"]
    assert wait([], "nothing", 60) == []


def test_of_many_that_are_done_all_are_taken_before_others_are_looked_at_again(session):
    looks = []
    asked = [ray.put(number) for number in range(100)]
    assert wait(asked, "many", 60, watch=lambda: looks.append(1) or ()) == list(range(100))
    assert len(looks) <= 3, "the time of a wait goes with the square of the ranks"


def test_the_log_of_a_process_on_another_machine_is_not_looked_for_here(session, workers):
    there = waits._actor(workers[0].pid.remote())
    assert waits._log_file(there).name.endswith(f"-{there['Pid']}.err")
    there["Address"]["NodeID"] = "0" * 56  # where a pid may be the same
    assert waits._log_file(there) is None


def test_a_stall_says_who_waits_for_whom_since_when(session, workers):
    done = workers[0].pid.remote()
    pid = wait(workers[1].pid.remote(), "the workers to start", 60)
    wait(done, "the workers to start", 60)
    with pytest.raises(Stalled) as stalled:
        wait([done, workers[1].sleep.remote(600)], "weights to arrive", 1)
    said = str(stalled.value)
    assert said.startswith("waited 1 s (since ")
    assert f"for weights to arrive: 1 of 2 are done, still waiting for rank 1 (pid {pid} on 127.0.0.1)" in said


def test_a_mistake_is_blamed_and_not_the_broken_connections_that_came_before_it(session, workers):
    with pytest.raises(ActorFailed) as failed:
        wait([workers[0].lose_peer.remote(), workers[1].mistake.remote(0.5)], "a training step", 60)
    assert failed.value.actor.startswith("rank 1 ")
    assert isinstance(failed.value.cause, KeyError)
    said = str(failed.value)
    assert "failed while the driver was waiting for a training step: KeyError: 'layers.0.bias'" in said
    assert "then also failed: rank 0" in said
    assert "in mistake" in said, "the remote traceback is missing"


def test_a_dead_process_is_blamed_with_the_end_of_its_log(session, workers):
    with pytest.raises(ActorFailed) as failed:
        wait([workers[0].lose_peer.remote(), workers[1].die.remote(0.5)], "a training step", 60)
    assert failed.value.actor.startswith("rank 1 ")
    assert failed.value.cause is None
    assert failed.value.log.parent == session.logs / "ray"
    assert "its process died" in str(failed.value)
    assert "the last words" in str(failed.value)


def test_who_has_died_is_blamed_and_not_who_asked_him(session, workers):
    pid = wait(workers[1].pid.remote(), "a pid", 60)
    with pytest.raises(ActorFailed) as failed:
        wait(workers[0].ask.remote(workers[1]), "a rollout", 60)
    assert failed.value.actor == f"rank 1 (pid {pid} on 127.0.0.1)"
    assert str(pid) in failed.value.log.name
    assert "the last words" in str(failed.value)


def test_a_buffer_that_died_when_it_was_asked_is_blamed_with_the_end_of_its_log(session, workers):
    with pytest.raises(ActorFailed) as failed:
        wait(workers[0].ask_as_a_buffer.remote(workers[1]), "a rollout", 60)
    assert failed.value.actor.startswith("rank 1 ") and "the last words" in str(failed.value)
    assert "actor_id" not in str(failed.value)


def test_answers_of_who_is_only_watched_do_not_count(session, workers):
    wait([worker.pid.remote() for worker in workers], "the workers to start", 60)
    pid = workers[0].pid
    with pytest.raises(Stalled, match="0 of 1 are done, still waiting for rank 1"):
        wait(workers[1].sleep.remote(600), "a rollout", 1.5, watch=lambda: [pid.remote()])


def test_a_failure_of_who_is_watched_ends_a_wait_for_others(session, workers):
    with pytest.raises(ActorFailed, match=r"rank 1 .*failed while the driver was waiting for a rollout"):
        dying = [workers[1].die.remote(0.1)]
        wait(workers[0].sleep.remote(600), "a rollout", 60, watch=lambda: dying)


def test_whoever_dies_idle_ends_a_wait_for_others(session, workers):
    pid, _ = wait([worker.pid.remote() for worker in workers], "the workers to start", 60)
    pulse = Pulse(workers)
    assert wait(workers[1].sleep.remote(0.1), "nobody to die", 60, pulse.beat) == "slept"
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorFailed, match=rf"^rank 0 \(pid {pid} on 127.0.0.1\) failed .* a rollout: its process died"):
        wait(workers[1].sleep.remote(600), "a rollout", 60, pulse.beat)


class Screen(Console):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_rollout_that_takes_long_is_asked_how_far_it_is(session, workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once; then again and again; and a dead actor is left to whoever waits for it."""
    monkeypatch.setattr(progress, "EVERY_S", 0.2)
    asked: list[Any] = []

    def ask() -> Any:
        asked.append(workers[0].sleep.remote(0) if len(asked) < 2 else workers[0].die.remote(0))
        return asked[-1]

    screen = Screen()
    look = progress.Progress(SimpleNamespace(progress=ask), screen).look  # type: ignore[arg-type]
    look()
    assert not asked
    deadline = time.monotonic() + 30
    while len(asked) < 4 and time.monotonic() < deadline:
        look()
        time.sleep(0.02)
    assert len(asked) == 4 and screen.notes == ["slept", "slept"]
