"""--profile-target: traces of torch.profiler, which chrome://tracing and Perfetto open.

One file a rollout and rank, `profiles/<target>-<rollout>-rank<rank>.json` in the run's directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from slime.config import Config
from slime.training.parallel import Parallel


class Profile:
    """Of one rank. `train_overall` may begin and end in different calls, the others are blocks of one."""

    def __init__(self, config: Config, parallel: Parallel) -> None:
        self.target = config.profile_target
        self.rollouts = range(config.profile_step_start, config.profile_step_end)
        self.directory = Path(config.run_dir or ".") / "profiles"
        self.rank = parallel.rank
        self.activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * parallel.device.is_cuda
        self.running: profile | None = None

    def start(self, target: str, rollout_id: int) -> None:
        if target == self.target and rollout_id in self.rollouts:
            self.running = profile(activities=self.activities)
            self.running.start()

    def stop(self, target: str, rollout_id: int) -> None:
        """Writes the trace of what was started, whole or not at all."""
        if target != self.target or self.running is None:
            return
        trace, self.running = self.running, None
        trace.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{target}-{rollout_id}-rank{self.rank}.json"
        partial = path.with_name(f".{path.name}")
        trace.export_chrome_trace(str(partial))
        partial.rename(path)

    @contextmanager
    def of(self, target: str, rollout_id: int) -> Iterator[None]:
        self.start(target, rollout_id)
        yield
        self.stop(target, rollout_id)
