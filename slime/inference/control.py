"""EngineControl: control calls on one engine, each with a deadline.

Invariants
- A call returns when the engine has done what was asked. Otherwise it raises InferenceError, which names the engine,
  the call and the engine's answer.
- An EngineControl holds no connection and no state: it can be pickled, and used by several threads at once.

Methods that take `**arguments` pass them on by SGLang's own names, as in `sglang/srt/managers/io_struct.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Literal

from slime.config.engine_groups import POLICY
from slime.inference.errors import InferenceError, RequestError
from slime.inference.http import ask, exchange

PauseMode = Literal["in_place", "retract", "abort"]
Memory = Literal["weights", "kv_cache"]
HEALTH_S = 10.0
ALL_WEIGHTS_S = 900.0  # as long as the driver waits for an update


@dataclass(frozen=True)
class EngineControl:
    """`token` is what the engine was started with, `timeout` in seconds for each call, and ALL_WEIGHTS_S, if that is
    more, for one that goes through all weights; `index` its place among the engines of a run. `first_device` and
    `num_devices` say which of the devices of all engines are its own, `model` which of the served models it has,
    `gets_weights` whether from training; `worker_type` and `bootstrap_port` are what a router must know of it. `starts`
    counts those that were seen of one that comes back where it was: two that differ in it are two engines, and the
    second is in no process group of the first."""

    url: str
    token: str | None = None
    name: str = "engine"
    timeout: float = 300.0
    index: int = 0
    first_device: int = 0
    num_devices: int = 1
    worker_type: str = "regular"
    bootstrap_port: int | None = None
    model: str = POLICY
    gets_weights: bool = True
    starts: int = 1

    @property
    def role(self) -> dict[str, Any]:
        """As a router wants it put."""
        port = {} if self.bootstrap_port is None else {"bootstrap_port": self.bootstrap_port}
        return {"worker_type": self.worker_type, **port}

    # -- generation ------------------------------------------------------------------------------------------------

    def pause(self, mode: PauseMode = "retract") -> None:
        """Stops generating; control calls are still served.

        in_place: requests wait where they are and keep their KV cache. retract: they go back into the queue and compute
        it again later, so that it can be flushed. abort: they end with what they have.
        """
        self._post("/pause_generation", mode=mode)

    def resume(self) -> None:
        """Generates on after a pause."""
        self._post("/continue_generation")

    def abort(self, request_id: str | None = None) -> None:
        """Ends one request, or all: each returns the tokens it has, with finish reason "abort"."""
        self._post("/abort_request", **({"abort_all": True} if request_id is None else {"rid": request_id}))

    def flush_cache(self, wait: float = 5.0) -> None:
        """Forgets the KV cache of past requests.

        Raises:
            RequestError: requests are still running after `wait` seconds. Those that a pause retracted are not.
        """
        deadline = time.monotonic() + wait
        while True:  # SGLang's own way of waiting would also wait for retracted requests, for ever
            try:
                self._post("/flush_cache")
                return
            except RequestError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    # -- weights ---------------------------------------------------------------------------------------------------

    def begin_weight_update(self) -> None:
        self._post("/begin_weight_update")

    def end_weight_update(self) -> None:
        self._post("/end_weight_update")

    def init_weights_update_group(
        self, *, master_address: str, master_port: int, rank_offset: int, world_size: int, group_name: str, backend: str
    ) -> None:
        """Joins a process group with the trainer; returns when all `world_size` ranks have. This engine's first rank is
        `rank_offset`."""
        self._post(
            "/init_weights_update_group",
            master_address=master_address,
            master_port=master_port,
            rank_offset=rank_offset,
            world_size=world_size,
            group_name=group_name,
            backend=backend,
        )

    def destroy_weights_update_group(self, *, group_name: str) -> None:
        self._post("/destroy_weights_update_group", group_name=group_name)

    def update_weights_from_distributed(
        self,
        *,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        group_name: str,
        **arguments: Any,
    ) -> None:
        """Receives the named tensors, broadcast in this order in the group."""
        self._post(
            "/update_weights_from_distributed",
            names=list(names),
            dtypes=list(dtypes),
            shapes=[list(shape) for shape in shapes],
            group_name=group_name,
            **arguments,
        )

    def update_weights_from_tensor(self, *, serialized_named_tensors: Sequence[str], **arguments: Any) -> None:
        """Copies tensors out of memory that the caller shares: for each rank of the engine one base64 text of pickled
        handles. On a CPU the sender needs torch's sharing strategy `file_system`; the other kills the engine."""
        self._post("/update_weights_from_tensor", serialized_named_tensors=list(serialized_named_tensors), **arguments)

    def update_weights_from_disk(self, *, model_path: str, weight_version: str | None = None) -> None:
        """Loads a Hugging Face checkpoint that the engine's node can read. Without a version the old one stays."""
        self._patient._post("/update_weights_from_disk", model_path=model_path, weight_version=weight_version)

    def weights_checksum(self) -> list[dict[str, Any]]:
        """A dict for each rank of the engine: `checksums` (the engine's tensor name -> text), `per_gpu_checksum` (of
        them all) and `parallelism_info`. Equal weights give equal checksums in any engine of the same parallel
        layout."""
        return self._patient._ask("POST", "/weights_checker", {"action": "checksum"}, needs="ranks")["ranks"]

    # -- memory ----------------------------------------------------------------------------------------------------

    def release_memory(self, tags: Sequence[Memory] = ("weights", "kv_cache"), wait: float = 5.0) -> None:
        """Gives the device's memory back, until `resume_memory`. On a CPU the engine only notes it.

        Raises:
            InferenceError: requests are still running after `wait` seconds. SGLang itself would crash.
        """
        try:
            self.flush_cache(wait)  # succeeds in the same states in which releasing does
        except RequestError as error:
            raise InferenceError(
                f"{self.name} at {self.url}: only an idle engine can release its memory; {error}"
            ) from error
        self._post("/release_memory_occupation", tags=list(tags))

    def resume_memory(self, tags: Sequence[Memory] = ("weights", "kv_cache")) -> None:
        """Takes the memory again. The content of the weights is undefined until they are updated."""
        self._post("/resume_memory_occupation", tags=list(tags))

    # -- state -----------------------------------------------------------------------------------------------------

    def health(self) -> None:
        """Raises when the engine does not say that it is up. It says so while paused or released, too."""
        exchange("GET", self.url, "/health", timeout=min(self.timeout, HEALTH_S), server=self.name)

    def server_info(self) -> dict[str, Any]:
        """All settings, and the state of the scheduler, which is asked: no answer means that it hangs."""
        return self._ask("GET", "/server_info", needs="tp_size")

    def answer(self, timeout: float) -> None:
        """Raises InferenceError when the scheduler does not answer within `timeout` seconds."""
        replace(self, timeout=timeout).server_info()

    def answers(self, timeout: float) -> bool:
        try:
            self.answer(timeout)
        except InferenceError:
            return False
        return True

    def loads(self) -> list[dict[str, Any]]:
        """Requests running and waiting, use of the KV cache, throughput: a dict for each data-parallel rank."""
        return self._ask("GET", "/v1/loads", needs="loads")["loads"]

    def metrics(self) -> str:
        """Prometheus text; needs --sglang-enable-metrics."""
        return exchange("GET", self.url, "/metrics", timeout=self.timeout, token=self.token, server=self.name).decode()

    def _post(self, path: str, **body: Any) -> None:
        exchange("POST", self.url, path, body, timeout=self.timeout, token=self.token, server=self.name)

    def _ask(self, method: str, path: str, body: Any = None, *, needs: str) -> Any:
        call = {"timeout": self.timeout, "token": self.token, "server": self.name}
        return ask(method, self.url, path, body, needs=needs, **call)

    @property
    def _patient(self) -> EngineControl:
        """For calls that go through all weights."""
        return replace(self, timeout=max(self.timeout, ALL_WEIGHTS_S))


def call_all(
    engines: Sequence[EngineControl], method: str, *, each: Sequence[dict[str, Any]] | None = None, **arguments: Any
) -> list[Any]:
    """Calls `method` on all engines at once, with `arguments` and, for engine i, `each[i]`; returns their results in
    order.

    Raises the first error to come; it names its engine. The other calls may still be under way then.
    """
    own = each or [{}] * len(engines)
    pool = ThreadPoolExecutor(max_workers=len(engines) or 1, thread_name_prefix="engines")
    try:
        calls = [
            pool.submit(getattr(engine, method), **arguments, **mine) for engine, mine in zip(engines, own, strict=True)
        ]
        done, _ = wait(calls, return_when=FIRST_EXCEPTION)
        for call in done:
            call.result()
        return [call.result() for call in calls]
    finally:
        pool.shutdown(wait=False)
