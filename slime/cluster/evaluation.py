"""Evaluation on held-out prompts, in turns with training or beside it.

Held: an evaluation is of one version of the weights, so it has ended before the engines get others; there is one at a
time.
"""

from __future__ import annotations

import ray

from slime.cluster.job import Job
from slime.observe import Recorder


class Evaluation:
    """Of a job; what it measures goes to `recorder`."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        self.job, self.recorder = job, recorder
        self._under_way: tuple[int, ray.ObjectRef] | None = None

    def begin_first(self, done: int) -> None:
        """Before the first rollout of this process, `done` of them being done: one that is due then, and was not
        measured before what ended an earlier process of this run."""
        if done == 0 or not self.recorder.has_evaluated(done):
            self.begin(done)

    def begin(self, done: int) -> None:
        """After `done` rollouts, if one is due then. It has ended on return, unless training may go on beside it."""
        if not self.job.config.evaluates_at(done):
            return
        self.end()
        self._under_way = done, self.job.evaluate(done)
        if not self.job.config.evaluates_beside_training:
            self.end()

    def end(self) -> None:
        """Waits for the one that is under way, if any."""
        if self._under_way is not None:
            done, ref = self._under_way
            self.recorder.eval(done, lambda _: self.job.wait_evaluation(ref))
            self._under_way = None
