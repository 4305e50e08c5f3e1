"""EngineLoad: how busy the engines are while a rollout is made, asked of them from time to time.

Invariant: it costs an engine one small request an interval, and a rollout nothing: while an engine does not answer,
nothing is noted; whoever watches over it says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from slime.inference.control import EngineControl, call_all
from slime.inference.errors import InferenceError

FIRST_S, INTERVAL_S = 0.3, 2.0
STATISTICS = {"mean": np.mean, "median": np.median, "max": np.max, "min": np.min}


class EngineLoad:
    """Use as a context manager. `engines` says which there are at the moment."""

    def __init__(self, engines: Callable[[], Sequence[EngineControl]]) -> None:
        self.engines = engines
        self.loads: list[dict[str, Any]] = []  # one of each data-parallel rank of each engine, each time
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="engine-load", daemon=True)

    def metrics(self) -> dict[str, float]:
        """Over engines and time, where there is something: a rollout may be over before anybody was asked."""
        busy = [load for load in self.loads if load["num_running_reqs"] or load["num_waiting_reqs"]]
        if not busy:
            return {}
        throughputs = [load["gen_throughput"] for load in busy if load["gen_throughput"]]
        return {
            "perf/kv_cache_utilization": float(np.mean([load["token_usage"] for load in busy])),
            "perf/engine_running_requests": float(np.mean([load["num_running_reqs"] for load in busy])),
            "perf/engine_waiting_requests": float(np.mean([load["num_waiting_reqs"] for load in busy])),
            **{
                f"perf/decode/throughput/{name}": float(statistic(throughputs))
                for name, statistic in STATISTICS.items()
                if throughputs
            },
        }

    def _look(self) -> None:
        pause = FIRST_S
        while not self._ended.wait(pause):
            pause = INTERVAL_S
            try:
                self.loads += [load for of_one in call_all(self.engines(), "loads") for load in of_one]
            except InferenceError:
                continue

    def __enter__(self) -> Self:
        if self.engines():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=INTERVAL_S)
