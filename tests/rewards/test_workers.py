"""Workers end what overruns, and go on."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slime.data.sample import Sample
from slime.rewards import RewardError, RewardFailure
from slime.rewards.catalogue import judged
from slime.rewards.workers import Worker, WorkerDied, WorkerKilled, Workers, WorkerUnfit


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


def test_a_task_that_takes_too_long_is_ended_and_the_next_one_done(worker: Worker) -> None:
    with pytest.raises(WorkerDied, match=r"took longer than 0.2 s"):
        worker.ask("time:sleep", [60], seconds=0.2)
    assert worker.ask("math:gcd", [12, 18]) == 6
    with pytest.raises(WorkerDied, match=r"took longer than 0.2 s"):  # in C, where no exception would come through
        worker.ask("operator:pow", [9, 387420489], seconds=0.2)
    assert worker.ask("math:gcd", [12, 18]) == 6


def test_a_task_that_raises_or_takes_all_memory_or_ends_its_process(worker: Worker) -> None:
    with pytest.raises(WorkerDied, match="raised TypeError"):
        worker.ask("math:gcd", ["x"])
    with pytest.raises(WorkerDied, match="raised MemoryError"):
        worker.ask("builtins:bytearray", [1 << 40])
    with pytest.raises(WorkerDied, match="its process ended with status 3"):
        worker.ask("os:_exit", [3])
    assert worker.ask("math:gcd", [12, 18]) == 6


def test_a_task_that_cannot_be_imported_is_no_fault_of_what_it_was_asked(worker: Worker) -> None:
    with pytest.raises(WorkerUnfit, match=r"cannot import not_there: ModuleNotFoundError: No module named 'not_there'"):
        worker.ask("not_there:task", [1])
    assert worker.ask("math:gcd", [12, 18]) == 6


def test_without_the_parser_no_answer_is_wrong_but_the_run_ends(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "latex2sympy2_extended.py").write_text("raise ImportError('not for this machine')")
    monkeypatch.syspath_prepend(tmp_path)
    fresh = Workers(1)
    monkeypatch.setattr("slime.rewards.math_answer.workers", lambda: fresh)
    with pytest.raises(RewardError, match=r"sample 3 .*cannot import .*not for this machine") as raised:
        asyncio.run(judged(None, Sample(index=3, response=r"\boxed{\sqrt{4}}", label="2"), "math"))
    assert not isinstance(raised.value, RewardFailure), "a mistake, which --rm-failure-policy does not pass over"
    fresh._idle.get().close()


def test_a_task_whose_worker_somebody_kills_is_done_by_a_new_one_once() -> None:
    async def kill_and_ask() -> None:
        workers = Workers(1)
        worker = workers._idle.queue[0]
        assert await workers.run("math:gcd", 12, 18) == 6
        worker._process.kill()
        assert await workers.run("math:gcd", 12, 18) == 6
        with pytest.raises(WorkerKilled, match=r"killed from outside \(SIGKILL\)"):
            await workers.run("signal:raise_signal", signal.SIGKILL)
        worker.close()

    asyncio.run(kill_and_ask())


def test_what_a_task_prints_is_no_answer(worker: Worker) -> None:
    assert worker.ask("builtins:print", ["[6, null]"]) is None


def test_workers_end_with_the_process_that_started_them() -> None:
    program = (
        "import sys; from slime.rewards.workers import Worker; worker = Worker(); worker.ask('math:gcd', [1]);"
        "print(worker._process.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    watch = os.pidfd_open(pid)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert select.select([watch], [], [], 20)[0], "the worker outlived its owner by 20 s"
    os.close(watch)
