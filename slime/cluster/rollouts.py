"""The rollout actor: makes samples, grades them, and leaves batches in the object store for the training ranks.

What travels through the driver are references, one a data-parallel rank, and a few numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import ray

from slime.cluster.buffer import Buffer
from slime.config import Config
from slime.data.sample import Sample
from slime.inference.control import EngineControl
from slime.inference.router import router_from_config
from slime.rollout.producer import Producer

WATCH_S = 0.5
Made = tuple[list[ray.ObjectRef], dict[str, float]]
Evaluated = tuple[dict[str, float], dict[str, Iterable[Sample]]]


class RolloutActor:
    """Owns the router, a process of its own, where there are engines to route to. Made, started, connected, in this order; two
    threads, one for calls and one that watches the router."""

    def __init__(self, config: Config, buffer: Buffer, dp_size: int, logs: Path, token: str | None) -> None:
        self.config, self.buffer, self.dp_size, self.logs, self.token = config, buffer, dp_size, logs, token
        self.router = self.producer = None
        self.stopping = False

    def start_router(self) -> None:
        """It comes up by itself from here on."""
        host = ray.util.get_node_ip_address()
        self.router = router_from_config(self.config, log_path=self.logs / "router.log", host=host, token=self.token)
        self.router.start()

    def connect(self, engines: list[EngineControl], timeout: float) -> None:
        """Puts the engines behind the router; users' functions find its address in the configuration."""
        if engines:
            self.router.wait_ready(timeout)
            self.router.add_workers([engine.url for engine in engines], timeout, token=self.token)
            self.config = self.config.replace(sglang_router_ip=self.router.host, sglang_router_port=self.router.port)
        self.producer = Producer(self.config, self.buffer, self.token)

    def watch(self) -> None:
        """Returns when the router is stopped; raises InferenceError when it ends by itself. Clients would wait for it for hours."""
        while not self.stopping:
            self.router.check()
            time.sleep(WATCH_S)

    def generate(self, rollout_id: int) -> Made:
        """A batch in the object store for each data-parallel rank, and metrics."""
        batches, metrics = self.producer.rollout(rollout_id, dp_size=self.dp_size)
        return [ray.put(batch) for batch in batches], metrics

    def evaluate(self, rollout_id: int) -> Evaluated:
        """Metrics of the held-out sets, and the samples of each."""
        return self.producer.evaluate(rollout_id)

    def close(self) -> None:
        self.stopping = True
        if self.producer is not None:
            self.producer.close()
        if self.router is not None:
            self.router.stop()


class Rollouts:
    """The actor, as the driver calls it. What a method returns is a reference."""

    def __init__(self, config: Config, buffer: Buffer, *, dp_size: int, logs: Path, token: str | None) -> None:
        actor = ray.remote(RolloutActor).options(name="rollout", num_cpus=0, max_concurrency=2)
        self.actor = actor.remote(config, buffer, dp_size, logs, token)

    def start_router(self) -> ray.ObjectRef:
        return self.actor.start_router.remote()

    def connect(self, engines: list[EngineControl], timeout: float) -> ray.ObjectRef:
        return self.actor.connect.remote(engines, timeout)

    def watch(self) -> ray.ObjectRef:
        """A reference that fails when the router does."""
        return self.actor.watch.remote()

    def generate(self, rollout_id: int) -> ray.ObjectRef:
        return self.actor.generate.remote(rollout_id)

    def evaluate(self, rollout_id: int) -> ray.ObjectRef:
        return self.actor.evaluate.remote(rollout_id)

    def close(self) -> ray.ObjectRef:
        return self.actor.close.remote()
