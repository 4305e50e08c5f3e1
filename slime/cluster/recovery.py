"""Recovery: engines and router that die come back, and the run goes on (--use-fault-tolerance).

A dead engine leaves the router at once, so that its requests are done by others, or wait. A new server is started in
its place; it comes up with the weights of the checkpoint, and so serves again only when it was given the current ones
(see turns.py). A router comes back on its old port, with the engines that it had.

Invariants: whoever dies is named with the cause, counted, and started again, unless that happens too often in one
rollout: then the run ends with the cause. All of it happens in the driver, while that waits for something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray.exceptions import RayError

from slime.cluster import interrupt
from slime.cluster.engines import END_S, Engines
from slime.cluster.rollouts import Rollouts
from slime.cluster.wait import ActorFailed, describe, log_file, wait
from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError
from slime.inference.watch import Checks, Death
from slime.observe import Console
from slime.observe.terminal import seconds

MOST_DEATHS = 3  # of one server in one rollout
RESTART_S = 1800.0
ROUTING_S = 30.0  # for the router to take engines in or out
LOOK_S = 0.2


@dataclass(eq=False, slots=True)
class Server:
    """An engine or the router. `pending` ends with its death, or while it is `down` with its new start; None while it
    may not be started."""

    name: str
    watch: Callable[[], ray.ObjectRef]
    restart: Callable[[], ray.ObjectRef]
    pending: ray.ObjectRef | None
    control: EngineControl | None = None  # of an engine that is up
    serves: bool = True  # has the current weights, and is sent requests
    down: bool = False
    died: float = 0.0
    deaths: int = 0  # in this rollout


class Recovery:
    """`controls` are those of the engines that are up, `watches` the references to the death of each, and then of the
    router of each model. Without `checks` nobody comes back: those references fail.
    `may_start` is unset while engines may not start, since training has their memory."""

    def __init__(
        self,
        engines: Engines,
        rollouts: Rollouts,
        controls: Sequence[EngineControl],
        watches: Sequence[ray.ObjectRef],
        console: Console,
        checks: Checks | None,
    ) -> None:
        self.rollouts, self.console, self.checks = rollouts, console, checks
        self.may_start = True
        self.engines = [
            Server(
                control.name,
                watch=lambda index=control.index: engines.watch(index),
                restart=lambda index=control.index: engines.restart(index, RESTART_S),
                pending=watches[control.index],
                control=control,
            )
            for control in controls
        ]
        self.routers = [
            Server(
                name,
                watch=lambda model=model: rollouts.watch(model),
                restart=lambda model=model: rollouts.restart_router(model, RESTART_S),
                pending=pending,
            )
            for (model, name), pending in zip(rollouts.routers.items(), watches[len(controls) :], strict=True)
        ]
        self.restarts = dict.fromkeys(("rollout/engine_restarts", "rollout/router_restarts"), 0)

    @property
    def watched(self) -> list[ray.ObjectRef]:
        """Calls on those who are watched, or started again: none of them fails but with the run."""
        return [server.pending for server in self._servers if server.pending is not None]

    @property
    def up(self) -> list[EngineControl]:
        """The engines that could be given weights."""
        controls = [engine.control for engine in self.engines if engine.control is not None]
        return [control for control in controls if control.gets_weights]

    @property
    def returned(self) -> list[EngineControl]:
        """Those of them that have been started again, and still have the weights of the checkpoint."""
        return [engine.control for engine in self.engines if engine.control in self.up and not engine.serves]

    def look(self) -> None:
        """Sees who has died and who is up again, and starts what may be started. Raises ActorFailed when a server
        can't be kept alive."""
        for server in self._servers:
            if server.pending is not None and ray.wait([server.pending], timeout=0)[0]:
                try:
                    result = ray.get(server.pending)
                except RayError:  # whoever waits fails with it
                    continue
                if isinstance(result, Death):
                    self._bury(server, result)
                elif server.down:
                    self._revive(server, result)
            if server.pending is None and self.may_start:
                server.pending = server.restart()

    def serve(self, engines: Sequence[EngineControl], what: str) -> None:
        """These have the current weights: those that had none of them until now are sent requests from here on."""
        back = [engine for engine in self.engines if engine.control in engines and not engine.serves]
        for engine in back:
            engine.serves = True
            self.console.say(f"{engine.name} serves again, with {what}, {_since(engine.died)} after it died")
        if back:
            self._route()

    def explain(self, failure: ActorFailed, engines: Sequence[EngineControl]) -> None:
        """Returns when one of `engines` turns out to be dead, which is why a call on them failed; else raises that
        failure."""
        if self.checks is None or not isinstance(failure.cause, InferenceError):
            raise failure
        deadline = time.monotonic() + self.checks.interval + self.checks.timeout + END_S
        while set(engines) <= set(self.up):
            if time.monotonic() > deadline:
                raise failure
            time.sleep(LOOK_S)
            interrupt.check()
            self.look()

    def rollout_is_over(self) -> dict[str, float]:
        """Returns metrics: how often servers have been started again so far."""
        if self.checks is None:
            return {}
        for server in self._servers:
            server.deaths = 0
        return dict(self.restarts)

    @property
    def _servers(self) -> list[Server]:
        return [*self.engines, *self.routers]

    def _bury(self, server: Server, death: Death) -> None:
        ref, server.pending = server.pending, None
        server.deaths += 1
        if not server.down:
            server.died = time.monotonic()
        server.down, server.control = True, None
        if server.deaths > MOST_DEATHS:
            lines = f"{server.name} died {server.deaths} times in one rollout; at last it {death.cause}{death.log_tail}"
            raise ActorFailed(lines, actor=describe(ref), cause=None, log=log_file(ref))
        self.console.warn(f"{server.name} {death.cause}; {death.what_then}, and what it was doing is done again")
        if server in self.engines:
            server.serves = False
            self._route()

    def _revive(self, server: Server, control: EngineControl | None) -> None:
        kind = "engine" if server in self.engines else "router"
        self.restarts[f"rollout/{kind}_restarts"] += 1
        server.down, server.control, server.pending = False, control, server.watch()
        if kind == "router":
            self._route()
            self.console.say(f"{server.name} is up again, {_since(server.died)} after it died")
        elif not control.gets_weights:
            self.serve([control], "the weights of its own model")

    def _route(self) -> None:
        """Tells the routers which engines serve. One that is down is told when it is up: nobody waits for that."""
        up = [model for model, router in zip(self.rollouts.routers, self.routers, strict=True) if not router.down]
        if not up:
            return
        serving = [engine.control for engine in self.engines if engine.control is not None and engine.serves]
        wait(self.rollouts.serve(serving, up, ROUTING_S), "the router to know its engines", RESTART_S)


def _since(moment: float) -> str:
    return seconds(time.monotonic() - moment)
