"""The inference engines as Ray actors. Each owns one SGLang server, a process of its own on the actor's node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import ray

from slime.cluster.placement import Placement, PlacementError
from slime.config import Config
from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError
from slime.inference.server import EngineServer

WATCH_S = 0.2


class EngineActor:
    """Two threads: one for calls, one that watches the server."""

    def __init__(self, server: EngineServer) -> None:
        self.server = server
        self.stopping = False
        server.start()

    def ready(self, timeout: float) -> EngineControl:
        self.server.wait_ready(timeout)
        return self.server.control

    def watch(self) -> None:
        """Returns when the engine is stopped. Raises InferenceError, with the end of its log, when it ends by
        itself."""
        while not self.stopping:
            if not self.server.is_running:
                raise InferenceError(f"{self.server.name} has ended unasked.{self.server.log_tail()}")
            time.sleep(WATCH_S)

    def sleep(self) -> None:
        self.server.control.release_memory()

    def wake(self, tags: Sequence[Literal["weights", "kv_cache"]]) -> None:
        self.server.control.resume_memory(tags)

    def stop(self) -> None:
        self.stopping = True
        self.server.stop()


class Engines:
    """All engines of a run. Their servers start at once; what a method returns is one reference an engine."""

    def __init__(
        self, config: Config, placement: Placement, *, device: Literal["cpu", "cuda"], logs: Path, token: str | None
    ) -> None:
        for index, places in enumerate(placement.engines):
            if len({place.node for place in places}) > 1:
                raise PlacementError(
                    f"engine {index} would span nodes, which is not supported yet: choose a"
                    " --rollout-num-gpus-per-engine of at most --num-gpus-per-node"
                )
        self.actors = []
        for index, places in enumerate(placement.engines):
            server = EngineServer.from_config(
                config,
                index=index,
                device=device,
                log_path=logs / f"engine-{index}.log",
                host=places[0].host,
                token=token,
            )
            options = placement.options(places) | {"name": f"engine-{index}", "max_concurrency": 2}
            self.actors.append(ray.remote(EngineActor).options(**options).remote(server))

    def __len__(self) -> int:
        return len(self.actors)

    def ready(self, timeout: float) -> list[ray.ObjectRef]:
        """The control of each engine, once it serves; an error after `timeout` seconds."""
        return [actor.ready.remote(timeout) for actor in self.actors]

    def watch(self) -> list[ray.ObjectRef]:
        """References that fail when an engine does."""
        return [actor.watch.remote() for actor in self.actors]

    def sleep(self) -> list[ray.ObjectRef]:
        return [actor.sleep.remote() for actor in self.actors]

    def wake(self, tags: Sequence[Literal["weights", "kv_cache"]]) -> list[ray.ObjectRef]:
        return [actor.wake.remote(tags) for actor in self.actors]

    def stop(self) -> list[ray.ObjectRef]:
        return [actor.stop.remote() for actor in self.actors]
