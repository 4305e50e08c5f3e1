"""Router: the sglang-router process in front of the engines, or one that runs already.

Invariants
- The router serves generation only. Control calls go to each engine itself: the router doesn't pass them on.
- Requests that carry the same `SESSION_HEADER` go to the same engine where the policy honours it (`manual` does).
- It passes on of a request what it knows. `return_routed_experts` it does not: the label `EXPERTS_LABEL` says the same,
  to engines that `slime.inference.launch` started.
- A router that we didn't start is left as it was found: `stop` takes out the engines that we put in, and nothing else.
  Once it no longer has them it was started anew, and has ended as far as we are concerned.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slime.inference.errors import InferenceError, RequestError
from slime.inference.external import LISTENS_S, ExternalServer
from slime.inference.flags import flags
from slime.inference.http import ask, exchange
from slime.inference.process import ServerProcess, is_loopback

if TYPE_CHECKING:
    from slime.config import Config
    from slime.config.engine_groups import ServedModel

SESSION_HEADER = "x-smg-routing-key"
EXPERTS_LABEL = "slime_return_routed_experts"  # in `custom_labels`
CALL_TIMEOUT_S = 30.0
DEFAULTS: dict[str, Any] = {
    "policy": "round_robin",  # power_of_two, with a single engine, makes the router exit
    "log_level": "warn",
}


class RouterWorkers:
    """The engines behind a router. It does in its own time what it is asked to do; these calls wait until it is
    done."""

    name: str
    url: str
    token: str | None

    @property
    def place(self) -> str:
        """Its name and where it is."""
        return f"{self.name} at {self.url}"

    def workers(self, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """`url`, `id`, `is_healthy`, `load` (requests under way) and more, of each engine."""
        return self._ask("GET", "/workers", needs="workers", timeout=timeout)["workers"]

    def add_workers(
        self,
        urls: Sequence[str],
        timeout: float,
        token: str | None = None,
        roles: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Adds engines, which must be up, and waits until the router sends to them. `token` is the engines' own, by
        default the router's; `roles` gives `worker_type` and `bootstrap_port` of those that are not regular, by url.
        Engines that the router has already are left as they are.

        Raises:
            InferenceError: after `timeout` seconds it had not taken all; with what it says of the others.
        """
        deadline = time.monotonic() + timeout
        known = {worker["url"] for worker in self.workers()}
        ids = {}
        for url in urls:
            if url not in known:
                role = roles.get(url, {"worker_type": "regular"})
                worker = {"url": url, **role, "api_key": token or self.token}
                ids[url] = self._ask("POST", "/workers", worker, needs="worker_id")["worker_id"]
        while missing := set(urls) - {worker["url"] for worker in self.workers() if worker["is_healthy"]}:
            self.check()
            if time.monotonic() > deadline:
                reasons = "; ".join(f"{url}: {self._reason(ids.get(url))}" for url in sorted(missing))
                raise InferenceError(f"{self.place} has not taken these engines after {timeout:g} s: {reasons}")
            time.sleep(0.05)

    def remove_worker(self, url: str, timeout: float) -> None:
        """Takes an engine out; nothing happens when the router doesn't have it. Requests under way are not ended."""
        deadline = time.monotonic() + timeout
        while ids := [worker["id"] for worker in self.workers() if worker["url"] == url]:
            if time.monotonic() > deadline:
                raise InferenceError(f"{self.place} still has the engine {url} after {timeout:g} s")
            try:
                self._call("DELETE", f"/workers/{ids[0]}")
            except RequestError as error:
                if error.status != 404:  # it has taken it out since it listed it
                    raise
            time.sleep(0.05)

    def is_healthy(self) -> bool:
        try:
            self.answer(CALL_TIMEOUT_S)
        except InferenceError:
            return False
        return True

    def answer(self, timeout: float) -> None:
        """Raises InferenceError when it does not say within `timeout` seconds that it is up."""
        self._call("GET", "/health", timeout=timeout)

    def check(self) -> None:
        """Raises when the router has ended; `add_workers` asks while it waits."""

    def _reason(self, worker_id: str | None) -> str:
        if worker_id is None:
            return "it had it before, and finds it unhealthy"
        try:
            job = self._ask("GET", f"/workers/{worker_id}", needs="id").get("job_status") or {}
        except InferenceError as error:
            return str(error)
        return job.get("message") or job.get("status") or "no reason given"

    def _call(self, method: str, path: str, *, timeout: float = CALL_TIMEOUT_S) -> bytes:
        return exchange(method, self.url, path, timeout=timeout, token=self.token, server=self.name)

    def _ask(self, method: str, path: str, body: Any = None, *, needs: str, timeout: float = CALL_TIMEOUT_S) -> Any:
        return ask(method, self.url, path, body, needs=needs, timeout=timeout, token=self.token, server=self.name)


class Router(RouterWorkers, ServerProcess):
    """A router of our own. `options` are sglang-router's, by name with underscores."""

    def __init__(
        self,
        *,
        log_path: Path,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        options: Mapping[str, Any] | None = None,
        name: str = "router",
    ) -> None:
        super().__init__(name, host=host, port=port, log_path=log_path)
        self.token = token or (None if is_loopback(host) else secrets.token_urlsafe(32))
        self.options = {**DEFAULTS, **(options or {})}

    def command(self) -> list[str]:
        # Its metrics would otherwise be on every interface, on a port that a second router could not have.
        metrics = {"prometheus_host": "127.0.0.1", "prometheus_port": self.reserve_port()}
        options = {**metrics, **self.options, "host": self.host, "port": self.port}
        return [sys.executable, "-m", "slime.inference.launch_router", *flags("router", options)]

    def environment(self) -> dict[str, str | None]:
        # It would send what is meant for the engines to a proxy.
        proxies = {name: None for name in os.environ if name.lower() in ("http_proxy", "all_proxy")}
        return {**proxies, "SLIME_TOKEN": self.token, "NO_COLOR": "1"}

    def restart(self, timeout: float) -> None:
        self._port_is_chosen = True  # by now: it is the one that clients know
        super().restart(timeout)

    def check(self) -> None:
        if not self.is_running:
            raise InferenceError(f"{self.name} has ended.{self.log_tail()}")


class ExternalRouter(RouterWorkers, ExternalServer):
    """A router that somebody else started."""

    def __init__(self, url: str, token: str | None = None) -> None:
        address = urlsplit(url).netloc
        ExternalServer.__init__(self, f"external router at {address}", address)
        self.url = url
        self.token = token
        self._added: set[str] = set()
        self._behind: set[str] = set()  # the engines that it has taken, those that it had before us among them

    @property
    def place(self) -> str:
        return self.name

    def look(self) -> bool:
        """Whether it is there, and still has our engines: one that was started anew between two looks has none."""
        behind = set(self._behind)
        if not super().look():
            return False
        try:
            known = {worker["url"] for worker in self.workers(LISTENS_S)}
        except InferenceError:  # the next look, or the next check, says whether it has ended
            return True
        return behind & self._behind <= known  # the others were taken out meanwhile

    def ending(self) -> str:
        return super().ending() if not super().look() else "it was started anew, and has forgotten our engines"

    def wait_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_healthy():
            if time.monotonic() > deadline:
                raise InferenceError(f"{self.name} does not answer, after {timeout:g} s: is it running?")
            time.sleep(0.5)
        self._is_up = True

    def restart(self, timeout: float) -> None:
        self._added, self._behind = set(), set()
        super().restart(timeout)

    def add_workers(
        self,
        urls: Sequence[str],
        timeout: float,
        token: str | None = None,
        roles: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self._added |= set(urls) - {worker["url"] for worker in self.workers()}
        super().add_workers(urls, timeout, token, roles)
        self._behind |= set(urls)

    def remove_worker(self, url: str, timeout: float) -> None:
        self._behind.discard(url)
        super().remove_worker(url, timeout)
        self._added.discard(url)

    def stop(self) -> None:
        """One that is gone has nothing of ours."""
        for url in sorted(self._added) if self._is_there else ():
            self.remove_worker(url, CALL_TIMEOUT_S)


def router_from_config(
    config: Config,
    model: ServedModel,
    *,
    log_path: Path,
    host: str = "127.0.0.1",
    token: str | None = None,
    is_policy: bool = True,
) -> Router | ExternalRouter:
    """The router of a served model: the one that --sglang-router-ip names, else one of our own.

    `host` is this machine's address for the others; the policy's has the port of --sglang-router-port, if that is
    given.
    """
    if config.sglang_router_ip is not None:
        if config.sglang_router_port is None:
            raise InferenceError("--sglang-router-ip names a router that runs: give its --sglang-router-port, too")
        return ExternalRouter(
            f"http://{config.sglang_router_ip}:{config.sglang_router_port}", config.router.get("api_key")
        )
    options = {
        "request_timeout_secs": int(config.sglang_router_request_timeout_secs),
        "pd_disaggregation": model.is_disaggregated,
        **config.router,
    }
    return Router(
        log_path=log_path,
        host=host,
        port=config.sglang_router_port if is_policy else None,
        token=token,
        options=options,
        name="router" if is_policy else f"router of {model.name}",
    )
