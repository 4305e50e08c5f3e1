"""Recorder: what happens in a run, told once, to everybody who listens: console, metrics.jsonl, trackers, timeline.

    with recorder.step(rollout_id) as step:
        with step.clock("train"):
            ...
        step.add({"rollout/raw_reward": 0.5})

Invariant: a step is written when it is over; a step that failed leaves its spans in the timeline and nothing else. Only
of a step that a checkpoint is about to count as done, what is known is written before.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from slime.observe.console import Console
from slime.observe.metrics import Metrics, MetricsError, read_metrics
from slime.observe.names import LOGPROB_DIFF, REWARD_FAILURES
from slime.observe.run_dir import RunDir, Transcript
from slime.observe.timeline import Timeline
from slime.observe.trackers import Tracker

Row = dict[str, float]
SUSPICIOUS_DIFFERENCE = 0.1  # nats; far more than rounding, far less than what other weights give
CLOCKS = {
    "train_wait": "waiting for rollout",
    "train": "training on rollout",
    "save_model": "saving after rollout",
}  # what a person calls them
ELSEWHERE = {  # what other processes time: name -> process, in the order of their work
    "sleep": "engines",
    "data_preprocess": "trainers",
    "values": "critics",
    "ref_log_probs": "trainers",
    "log_probs": "trainers",
    "actor_train": "trainers",
    "critic_train": "critics",
    "wake_up": "engines",
    "update_weights": "engines",
}


class StepRecord:
    """One step of the driver. `metrics` are on the axis of rollouts, `train_rows` one an optimizer step of a model."""

    def __init__(
        self, rollout_id: int, console: Console, timeline: Timeline, log: Callable[[Row, Sequence[Row], int], None]
    ) -> None:
        self.rollout_id = rollout_id
        self._console = console
        self.metrics: Row = {}
        self.train_rows: Sequence[Row] = ()
        self._timeline = timeline
        self._log = log
        self._written: dict[str, float] = {}
        self._due: Sequence[Row] = ()

    def add(self, metrics: Mapping[str, float], train_rows: Sequence[Row] = ()) -> None:
        """Joins `metrics` to those of the step, when what they measured has just ended.

        The times among them that other processes took go into the timeline, one after another, the last ending now.
        """
        self.metrics |= metrics
        if train_rows:
            self.train_rows = self._due = train_rows
        end = time.time()
        for name, process in reversed(ELSEWHERE.items()):
            if seconds := metrics.get(f"perf/{name}_time"):
                self._timeline.add(name, end - seconds, end, process=process, rollout_id=self.rollout_id)
                end -= seconds

    def write(self) -> None:
        """Writes what was added since the last time; so a run that is killed, and resumed after this step, has it."""
        self._log(
            {name: value for name, value in self.metrics.items() if self._written.get(name) != value},
            self._due,
            self.rollout_id,
        )
        self._written |= self.metrics
        self._due = ()

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Times the block as perf/<name>_time, in seconds, with those of the same name before, and shows it while it
        goes on."""
        start = time.perf_counter()
        shown = self._console.phase(f"{CLOCKS.get(name, name)} {self.rollout_id}", brief=True)
        with shown, self._timeline.span(name, rollout_id=self.rollout_id):
            yield
        name = f"perf/{name}_time"
        self.metrics[name] = self.metrics.get(name, 0.0) + time.perf_counter() - start


class Recorder:
    """Use as a context manager: the trackers end with it."""

    def __init__(self, run: RunDir, console: Console, trackers: Sequence[Tracker] = ()) -> None:
        self.run = run
        self.console = console
        self._metrics = Metrics(run, trackers, warn=console.warn)
        self._timeline = Timeline(run)
        self._optimizer_steps = 0
        self._doubted = False
        self._rewards_missed = 0
        for tracker in trackers:
            if tracker.place is not None:
                console.say(f"{tracker.name}: {tracker.place}")

    @contextmanager
    def step(self, rollout_id: int) -> Iterator[StepRecord]:
        record = StepRecord(rollout_id, self.console, self._timeline, self._log)
        with record.clock("step"):
            yield record
        metrics = record.metrics
        waited, trained = metrics.get("perf/train_wait_time"), metrics.get("perf/train_time")
        if waited is not None and trained is not None:
            metrics["perf/wait_time_ratio"] = waited / (waited + trained)
        record.write()
        shown = {**(record.train_rows[0] if record.train_rows else {}), **metrics}
        self.console.step(rollout_id, shown)
        self._doubt_the_engines(rollout_id, shown.get(LOGPROB_DIFF, 0.0))
        self._miss_rewards(rollout_id, int(shown.get(REWARD_FAILURES, 0)))

    def _log(self, metrics: Row, train_rows: Sequence[Row], rollout_id: int) -> None:
        self._metrics.log(metrics, step=rollout_id)
        for row in train_rows:
            step = int(row.get("train/step", row.get("critic-train/step", self._optimizer_steps)))
            self._metrics.log(row, step=step)
            self._optimizer_steps = step + 1  # for rows that don't say

    def _doubt_the_engines(self, rollout_id: int, difference: float) -> None:
        """Says once that trainer and engine do not run the same model."""
        if difference > SUSPICIOUS_DIFFERENCE and not self._doubted:
            self._doubted = True
            self.console.warn(
                f"rollout {rollout_id}: trainer and engine give a sampled token log-probs that differ by"
                f" {difference:.2g} on average: they do not run the same weights. --check-weight-update-equal tells"
                " whether the update is at fault; with --max-weight-staleness it may be the samples' age, in a replay"
                " that its weights have gone another way."
            )

    def _miss_rewards(self, rollout_id: int, failures: int) -> None:
        """Says of rewards that were not had, first at once and then when there are twice as many."""
        said, self._rewards_missed = self._rewards_missed, self._rewards_missed + failures
        if self._rewards_missed.bit_length() > said.bit_length():
            self.console.warn(
                f"up to rollout {rollout_id}, {self._rewards_missed} rewards were not had, and went the way of"
                " --rm-failure-policy. Why: metadata.reward_failure of the samples; of those that were dropped also"
                f" `python -m slime.inspect {shlex.quote(str(self.run.path))} dropped`."
            )

    def has_evaluated(self, step: int) -> bool:
        """Whether the run has what held-out prompts said after `step` steps, from before it was resumed."""
        with suppress(MetricsError):  # a run goes on in spite of it
            return any(row.get("eval/step") == step for row in read_metrics(self.run.metrics_file))
        return False

    def eval(self, step: int, evaluate: Callable[[int], tuple[Row, dict[str, Iterable[Transcript]]]]) -> None:
        """Runs `evaluate(step)`, after `step` steps, and records what it measured and the transcripts of each set."""
        with self.console.phase("evaluating on held-out prompts", brief=True), self._timeline.span("eval", step=step):
            metrics, transcripts = evaluate(step)
        self._metrics.log(metrics, step=step)
        self.run.write_samples(step, transcripts)
        self.console.eval(step, metrics)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.console.close()
        self._metrics.close()
        self._timeline.close()
