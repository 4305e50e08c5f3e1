"""Route: the way to one served model, its router and the engines behind that, in the process of the rollouts.

Invariant: the router has no engine that is not to serve; one that has come back has none until `serve` is called.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from slime.config import Config
from slime.config.engine_groups import ServedModel
from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError
from slime.inference.router import router_from_config
from slime.inference.watch import Checks, Death, Watch

END_S = 10.0  # from when a router no longer answers until its process has ended, if it does


class Route:
    """`host` is this machine's address for the others, `token` the run's. Made, started, connected, in this order."""

    def __init__(
        self, config: Config, model: ServedModel, *, is_policy: bool, logs: Path, host: str, token: str | None
    ) -> None:
        self.model, self.token, self.checks = model.name, token, Checks.from_config(config)
        log = "router.log" if is_policy else f"router-{model.name}.log"
        self.router = router_from_config(
            config, model, log_path=logs / log, host=host, token=token, is_policy=is_policy
        )
        self.engines: list[EngineControl] = []
        self.watching: Watch | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; settled once connected."""
        url = urlsplit(self.router.url)
        return url.hostname, url.port

    def start(self) -> None:
        """It comes up by itself from here on."""
        self.router.start()
        self._watch_anew()

    def connect(self, engines: list[EngineControl], timeout: float) -> None:
        """Of all engines of the run, those of this model are put behind the router."""
        self.router.wait_ready(timeout)
        self.engines = self._ours(engines)
        self._add_workers(timeout)

    def serve(self, engines: list[EngineControl], timeout: float) -> None:
        """From now on these are the engines of the run. When the router, or one of them, dies at this moment nothing is
        done: once that is known, this is called again."""
        engines = self._ours(engines)
        gone, self.engines = set(self.engines) - set(engines), engines
        try:
            for engine in gone:
                self.router.remove_worker(engine.url, timeout)
            self._add_workers(timeout)
        except InferenceError:
            if all(engine.answers(END_S) for engine in engines) and not self.router.has_ended(END_S):
                raise

    def restart(self, timeout: float) -> Death | None:
        """Starts the router on its old port, without engines, or waits until who had started it does. Returns how that
        failed."""
        self._watch_anew()
        try:
            self.router.restart(timeout)
        except InferenceError as error:
            return Death.at_start(error, self.router)
        return None

    def watch(self) -> Death | None:
        """Returns when the router is stopped. When it ends by itself, its death; without --use-fault-tolerance that is
        an InferenceError, since clients would wait for it for hours."""
        return self.watching.death_if_mended() if self.watching is not None else None

    def stop_watching(self) -> None:
        """The router is about to be stopped."""
        if self.watching is not None:
            self.watching.stop()

    def _watch_anew(self) -> None:
        self.watching = Watch(self.router, self.router.answer, self.checks)

    def _add_workers(self, timeout: float) -> None:
        roles = {engine.url: engine.role for engine in self.engines}
        self.router.add_workers([engine.url for engine in self.engines], timeout, token=self.token, roles=roles)
        if self.watching is not None:
            self.watching.server_is_up()

    def _ours(self, engines: list[EngineControl]) -> list[EngineControl]:
        return [engine for engine in engines if engine.model == self.model]
