"""Run: train.py, started, killed in parts, and started again until it is done.

A rollout begins, as far as faults are concerned, when the ledger says that a sample is generated for it. The moment of
the kill is drawn from four fifths of the time that the step before took, so as not to be past the end of the last one.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import psutil

from slime.chaos.victims import KINDS, MARK, lives, marked, one_of
from slime.config import Config, checkout, checkpoint_dir
from slime.data.history import History, Tally
from slime.data.ledger import FLUSH_S
from slime.data.ledger_file import LedgerError
from slime.observe import RunDir, read_metrics

TRAIN = checkout.CHECKOUT / "train.py"
END_S = 60.0  # a run that loses what it can't do without ends within this time
POLL_S = 0.05
FIRST_S = 1.0  # how long a rollout is taken to be before one has been


class ChaosError(RuntimeError):
    """A run that did what no kill explains, or didn't come to the rollout of one."""


@dataclass(slots=True)
class Kill:
    """Of a process of `kind` in rollout `rollout_id`. Once done: `pid` is whose, `after` how long after the rollout
    began, `hit` in which rollout the run was by then: a later one, where they are short; `ended_after` how long after
    that the run ended, None if it went on; in seconds."""

    kind: str
    rollout_id: int
    pid: int | None = None
    after: float = 0.0
    hit: int | None = None
    ended_after: float | None = None

    def __str__(self) -> str:
        return f"{self.kind}@{self.rollout_id}"


class Run:
    """`words` are those of train.py. Saves after every rollout, if neither words nor files say otherwise: but only
    where a kill ends the run."""

    def __init__(
        self, config: Config, words: Sequence[str], kills: Sequence[Kill], dice: random.Random, *, quiet: bool
    ) -> None:
        self.config, self.kills, self.quiet = config, sorted(kills, key=lambda kill: kill.rollout_id), quiet
        self.directory = RunDir(Path(config.run_dir))
        self.dice, self.mark = dice, secrets.token_hex(8)
        self.words = [*words, "--run-dir", config.run_dir]
        self.save = Path(config.save or self.directory.checkpoints)
        if any(self.ends(kill) for kill in kills):
            self.words += ["--save", str(self.save), "--load", str(config.load or self.save), "--allow-fresh-start"]
            if config.save_interval is None:
                self.words += ["--save-interval", "1"]
        self.starts = 0

    def ends(self, kill: Kill) -> bool:
        """Whether the run ends by design when such a process is killed."""
        return not (KINDS[kill.kind].is_replaced and self.config.use_fault_tolerance)

    def go(self) -> Tally:
        """Raises ChaosError, or LedgerError where the run had no ledger."""
        waiting = list(self.kills)
        while True:
            with self._started() as process:
                while waiting:
                    done = self._kill(process, waiting.pop(0))
                    if done.ended_after is not None:
                        break
                else:
                    self._say("waiting for the run to be done")
                    if status := process.wait():
                        raise ChaosError(f"train.py ended with status {status}, which no kill explains")
                    break
        with closing(History(self.directory.ledger_file)) as history:
            return history.tally()

    def _kill(self, process: subprocess.Popen[bytes], kill: Kill) -> Kill:
        began = self._begin(process, kill)
        moment = began + self.dice.uniform(0, 0.8 * self._length())
        one_at_a_time = not self.config.async_depth and self.config.max_weight_staleness is None
        victim = None
        while True:
            if process.poll() is not None:
                raise ChaosError(f"train.py ended with status {process.returncode} before {kill} was killed")
            if victim is None or not lives(victim):  # found ahead of the moment, for the search takes its time
                victim = one_of(kill.kind, self.mark, self.dice)
            # Where this rollout is shorter than the one before, the moment would be in the next.
            due = time.monotonic() >= moment or (one_at_a_time and self._has_begun(kill.rollout_id + 1))
            if due and victim is not None and lives(victim):
                with suppress(psutil.NoSuchProcess):  # then it has ended by itself
                    victim.kill()
                    break
            time.sleep(max(0.0, min(POLL_S, moment - time.monotonic())) or POLL_S)
        killed, clock = time.monotonic(), time.time()
        kill.pid, kill.after = victim.pid, killed - began
        kill.hit = self._rollout_at(clock, kill.rollout_id)
        by_then = "" if kill.hit == kill.rollout_id else f", by then in rollout {kill.hit}"
        self._say(f"rollout {kill.rollout_id}: killed {kill.kind} (pid {kill.pid}) after {kill.after:.2f} s{by_then}")
        if self.ends(kill):
            self._see_the_end(process, kill)
            kill.ended_after = time.monotonic() - killed
        return kill

    def _see_the_end(self, process: subprocess.Popen[bytes], kill: Kill) -> None:
        deadline = time.monotonic() + END_S
        while process.poll() is None or marked(self.mark):
            if time.monotonic() > deadline:
                raise ChaosError(f"the run, or some of it, still lives {END_S:g} s after {kill} was killed")
            time.sleep(POLL_S)
        if process.returncode == 0:
            raise ChaosError(f"{kill} was killed when the run was done already: name an earlier rollout")

    def _begin(self, process: subprocess.Popen[bytes], kill: Kill) -> float:
        """Waits until the rollout begins; returns when that was."""
        while not self._has_begun(kill.rollout_id):
            if process.poll() is not None:
                raise ChaosError(f"train.py ended with status {process.returncode} before it came to {kill}")
            time.sleep(POLL_S)
        return time.monotonic()

    def _rollout_at(self, clock: float, rollout_id: int) -> int:
        """In which rollout the run was at that time, this one or a later."""
        time.sleep(2 * FLUSH_S)  # until then the ledger may not say so
        while self._has_begun(rollout_id + 1, until=clock):
            rollout_id += 1
        return rollout_id

    def _has_begun(self, rollout_id: int, until: float = inf) -> bool:
        with self._history() as history:
            return history is not None and history.has_begun(rollout_id, self.known, until)

    def _length(self) -> float:
        """Of a rollout, with what comes after it, in seconds."""
        steps = [row["perf/step_time"] for row in read_metrics(self.directory.path) if "perf/step_time" in row]
        return steps[-1] if steps else FIRST_S

    @contextmanager
    def _history(self) -> Iterator[History | None]:
        try:
            history = History(self.directory.ledger_file)
        except LedgerError:  # not there yet
            yield None
            return
        with closing(history):
            yield history

    @contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        """Of what it started, nothing lives on."""
        words = list(self.words)
        if self.starts and (self.save / checkpoint_dir.MARKER).is_file():
            words += ["--load", str(self.save)]
        self.starts += 1
        with self._history() as history:
            self.known = history.last_change() if history else 0
        environment = {**os.environ, MARK: self.mark}
        output: Any = sys.stderr if self.quiet else None
        process = subprocess.Popen([sys.executable, str(TRAIN), *words], env=environment, stdout=output)
        try:
            yield process
        finally:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """In order, if it will: then the run's reaper clears what the killed have left."""
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        deadline = time.monotonic() + END_S
        while marked(self.mark) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for left in marked(self.mark):
            left.kill()

    def _say(self, text: str) -> None:
        print(f"chaos: {text}", file=sys.stderr, flush=True)
