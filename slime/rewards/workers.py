"""Processes that do what may hang, crash or take all memory: kept warm, ended when they overrun, started again.

Held: a task ends within its seconds whatever it does, as the kernel ends its process by SIGALRM; a worker ends with the
process that started it; what is exchanged is JSON, one line each way; a task is tried twice only if its process was
killed by somebody else; what cannot be imported is no fault of whoever asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

SECONDS = 5.0
MEMORY = 4 << 30  # bytes of address space
MOST = 8


class WorkerDied(Exception):
    """The task did not come to an end; the message says what became of it."""


class WorkerKilled(WorkerDied):
    """Its process was killed from outside (by the kernel, for want of memory): nothing is said of the task."""


class WorkerUnfit(Exception):
    """Here no such task can be done, whatever it is asked; the message says why."""


class Worker:
    """One process, for one task at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, function: str, arguments: list[Any], seconds: float = SECONDS) -> Any:
        """What `function` ("module:name") returns for JSON arguments. Raises WorkerDied, after `seconds` at most,
        WorkerKilled at any time, and WorkerUnfit."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from slime.rewards.workers import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        try:
            self._process.stdin.write(json.dumps([function, arguments, seconds]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            status = self._process.wait()
            self.close()
            if status == -signal.SIGALRM:
                raise WorkerDied(f"took longer than {seconds:g} s")
            if status in (-signal.SIGKILL, -signal.SIGTERM):
                raise WorkerKilled(f"its process was killed from outside ({signal.Signals(-status).name})")
            raise WorkerDied(f"its process ended with status {status}")
        result, error, lack = json.loads(answer)
        if lack:
            raise WorkerUnfit(lack)
        if error:
            raise WorkerDied(error)
        return result

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.stdout.close()
            self._process.kill()
            self._process.wait()
            self._process = None


class Workers:
    """As many workers as there are cores, each started when first needed, shared by all threads and event loops."""

    def __init__(self, count: int) -> None:
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(Worker())
        self._threads = ThreadPoolExecutor(count, "grading")

    async def run(self, function: str, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, function, list(arguments))

    def _ask(self, function: str, arguments: list[Any]) -> Any:
        worker = self._idle.get()
        try:
            with contextlib.suppress(WorkerKilled):
                return worker.ask(function, arguments)
            return worker.ask(function, arguments)
        finally:
            self._idle.put(worker)


@cache
def workers() -> Workers:
    """Those of this process."""
    return Workers(max(1, min(MOST, len(os.sched_getaffinity(0)))))


def main() -> None:
    """The worker: reads tasks from its standard input until that closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        function, arguments, seconds = json.loads(line)
        module, _, name = function.partition(":")
        result, error, lack = None, None, None
        try:
            task = getattr(importlib.import_module(module), name)  # imports are not the task's time
        except Exception as raised:
            lack = f"cannot import {module}: {type(raised).__name__}: {raised!s:.300}"
        else:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                result = task(*arguments)
            except Exception as raised:
                error = f"raised {type(raised).__name__}: {raised!s:.300}"
            signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps([result, error, lack]) + "\n")
        answers.flush()
