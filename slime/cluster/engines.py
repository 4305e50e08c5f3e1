"""The inference engines as Ray actors. Each owns one SGLang server, a process of its own on the actor's node, or knows
one that somebody else started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import ray

from slime.cluster.placement import Placement, PlacementError
from slime.config import Config
from slime.config.engine_groups import ServedModel, planned_engines
from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError
from slime.inference.external import ExternalEngine
from slime.inference.server import EngineServer, needs_texts
from slime.inference.watch import Checks, Death, Watch

END_S = 40.0  # from when a server no longer answers until its process has ended, if it does


class EngineActor:
    """Three threads: one for calls, one that watches the server, one that stops it whatever the others do.

    With `checks` (--use-fault-tolerance) a server may die, and come back: what is asked of one that is dead is done by
    its death.
    """

    def __init__(self, server: EngineServer | ExternalEngine, checks: Checks | None) -> None:
        self.server, self.checks = server, checks
        self.asleep: set[str] = set()  # what of its memory the server has released
        self.watching = Watch(server, self._ask, checks)
        server.start()

    def ready(self, timeout: float) -> EngineControl:
        self.server.wait_ready(timeout)
        self.watching.server_is_up()
        return self.server.control

    def restart(self, timeout: float) -> EngineControl | Death:
        """Starts a new server, on another port, with the weights of the checkpoint."""
        self.asleep = set()
        self.watching = Watch(self.server, self._ask, self.checks)
        try:
            self.server.restart(timeout)
        except InferenceError as error:
            return Death.at_start(error, self.server)
        self.watching.server_is_up()
        return self.server.control

    @ray.method(concurrency_group="watch")
    def watch(self) -> Death | None:
        """Returns when the engine is stopped. When it ends by itself, its death; without --use-fault-tolerance that is
        an InferenceError."""
        return self.watching.death_if_mended()

    def sleep(self) -> None:
        self._unless_dead(self.server.control.release_memory)
        self.asleep = {"weights", "kv_cache"}

    def wake(self, tags: Sequence[Literal["weights", "kv_cache"]]) -> None:
        if self.asleep.issuperset(tags):  # else it has been started since, and is awake
            self._unless_dead(lambda: self.server.control.resume_memory(tags))
            self.asleep -= set(tags)

    @ray.method(concurrency_group="stop")
    def stop(self) -> None:
        self.watching.stop()
        self.server.stop()

    def _ask(self, timeout: float) -> None:
        self.server.control.answer(timeout)

    def _unless_dead(self, action: Callable[[], None]) -> None:
        try:
            action()
        except InferenceError:
            if self.checks is None or not self.server.has_ended(END_S):
                raise


class Engines:
    """All engines of a run. Their servers start at once; what a method returns is one reference an engine."""

    def __init__(
        self,
        config: Config,
        models: Sequence[ServedModel],
        placement: Placement,
        *,
        device: Literal["cpu", "cuda"],
        logs: Path,
        token: str | None,
    ) -> None:
        for index, places in enumerate(placement.engines):
            if len({place.node for place in places}) > 1:
                raise PlacementError(
                    f"engine {index} would span nodes, which is not supported yet: choose a"
                    " --rollout-num-gpus-per-engine of at most --num-gpus-per-node"
                )
        if device == "cpu" and any(model.is_disaggregated for model in models):
            raise PlacementError("prefill and decode engines need GPUs, and the cluster has none")
        self.actors, self.in_turns = [], []
        checks, seats = Checks.from_config(config), iter(placement.engines)
        for engine in planned_engines(models):
            if engine.address is not None:
                server = ExternalEngine(engine.address, engine.index, needs_texts(config))
                options = {"num_cpus": 0}
            else:
                places = next(seats)
                log, host, options = logs / f"engine-{engine.index}.log", places[0].host, placement.options(places)
                server = EngineServer.from_config(config, engine, device=device, log_path=log, host=host, token=token)
            actor = ray.remote(concurrency_groups={"watch": 1, "stop": 1})(EngineActor)
            options |= {"name": f"engine-{engine.index}"}
            self.actors.append(actor.options(**options).remote(server, checks))
            if engine.model.update_weights or engine.first_device < len(placement.train):
                self.in_turns.append(self.actors[-1])

    def __len__(self) -> int:
        return len(self.actors)

    def ready(self, timeout: float) -> list[ray.ObjectRef]:
        """The control of each engine, once it serves; an error after `timeout` seconds."""
        return [actor.ready.remote(timeout) for actor in self.actors]

    def watch(self, index: int) -> ray.ObjectRef:
        """A reference to the death of an engine; without --use-fault-tolerance it fails then."""
        return self.actors[index].watch.remote()

    def restart(self, index: int, timeout: float) -> ray.ObjectRef:
        """The control of an engine that had died, once it serves again, or how it failed to."""
        return self.actors[index].restart.remote(timeout)

    def sleep(self) -> list[ray.ObjectRef]:
        """Of those that take turns with training, or have to wait for its weights."""
        return [actor.sleep.remote() for actor in self.in_turns]

    def wake(self, tags: Sequence[Literal["weights", "kv_cache"]]) -> list[ray.ObjectRef]:
        return [actor.wake.remote(tags) for actor in self.in_turns]

    def stop(self) -> list[ray.ObjectRef]:
        return [actor.stop.remote() for actor in self.actors]
