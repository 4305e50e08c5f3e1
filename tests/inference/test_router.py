"""Engines behind a router: taken in, taken out, and what it says of those it cannot take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slime.inference.client import GenerateClient
from slime.inference.errors import InferenceError
from slime.inference.router import ExternalRouter, Router
from slime.inference.server import EngineServer
from slime.inference.watch import Watch
from tests.conftest import START_TIMEOUT_S
from tests.inference.conftest import Run
from tests.inference.test_process import until

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A running router without engines."""
    with Router(log_path=tmp_path_factory.mktemp("empty") / "router.log") as router:
        router.wait_ready(START_TIMEOUT_S)
        yield router


def urls(router: Router | ExternalRouter) -> list[str]:
    return [worker["url"] for worker in router.workers()]


def test_a_router_imports_neither_torch_nor_sglang() -> None:
    """Which would take it longer than all else at its start."""
    code = "import sys, slime.inference.launch_router; print({'torch', 'sglang'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "set()\n"


def test_the_router_knows_its_engine(router: Router, engine: EngineServer) -> None:
    (worker,) = router.workers()
    assert (worker["url"], worker["is_healthy"]) == (engine.url, True)


def test_engines_are_taken_in_and_out(empty: Router, engine: EngineServer) -> None:
    empty.add_workers([engine.url], 60)
    empty.add_workers([engine.url], 60)
    assert urls(empty) == [engine.url]
    empty.remove_worker(engine.url, 60)
    empty.remove_worker(engine.url, 60)
    assert urls(empty) == []


def test_a_router_of_prefill_and_decode_engines_knows_which_is_which(engine: EngineServer, tmp_path: Path) -> None:
    """One stands for both: what it can do itself the router does not ask."""
    with Router(log_path=tmp_path / "router.log", options={"pd_disaggregation": True}) as router:
        router.wait_ready(START_TIMEOUT_S)
        roles = {engine.url: {"worker_type": "prefill", "bootstrap_port": 8998}}
        router.add_workers([engine.url], 60, roles=roles)
        (worker,) = router.workers()
        assert (worker["worker_type"], worker["bootstrap_port"]) == ("prefill", 8998)
        router.remove_worker(engine.url, 60)
        router.add_workers([engine.url], 60, roles={engine.url: {"worker_type": "decode"}})
        assert [worker["worker_type"] for worker in router.workers()] == ["decode"]


def test_an_engine_that_does_not_answer_is_named_with_the_reason(empty: Router) -> None:
    with pytest.raises(
        InferenceError, match=rf"router at {empty.url} has not taken these engines after 0.5 s: {NOBODY}: "
    ):
        empty.add_workers([NOBODY], 0.5)
    assert NOBODY not in urls(empty)


def test_a_router_without_engines_is_tried_until_the_deadline(empty: Router, run: Run) -> None:
    async def ask() -> None:
        async with GenerateClient(empty.url, timeout=2) as client:
            await client.generate([5], {})

    with pytest.raises(InferenceError, match=r"2 s.*503.*No available workers"):
        run(ask())


def test_somebody_elses_router_is_left_as_it_was_found(empty: Router, engine: EngineServer) -> None:
    external = ExternalRouter(empty.url)
    external.start()
    external.wait_ready(60)
    external.add_workers([engine.url], 60)
    assert urls(empty) == [engine.url]
    external.stop()
    assert urls(empty) == []
    assert empty.is_running


def test_an_engine_that_was_there_before_stays(empty: Router, engine: EngineServer) -> None:
    empty.add_workers([engine.url], 60)
    external = ExternalRouter(empty.url)
    external.add_workers([engine.url], 60)
    external.stop()
    assert urls(empty) == [engine.url]
    empty.remove_worker(engine.url, 60)


def test_somebody_elses_router_is_missed_and_has_our_engines_again_when_it_is_back(
    engine: EngineServer, tmp_path: Path
) -> None:
    with Router(log_path=tmp_path / "router.log") as router:
        router.wait_ready(START_TIMEOUT_S)
        external = ExternalRouter(router.url)
        external.wait_ready(60)
        external.add_workers([engine.url], 60)
        watch = Watch(external, external.answer, None)
        watch.server_is_up()
        router.stop()
        at = f"external router at {router.host}:{router.port}"
        with pytest.raises(InferenceError, match=f"{at} has ended, nobody listens at its address any more. With --use"):
            watch.death_if_mended()
        external.stop()  # it has nothing of ours any more
        router.restart(START_TIMEOUT_S)
        external.restart(60)
        assert external.is_running
        external.add_workers([engine.url], 60)
        assert urls(router) == [engine.url]

        router.restart(START_TIMEOUT_S)  # so quickly that its end is not seen
        assert Watch(external, external.answer, None).death().cause == (
            "has ended, it was started anew, and has forgotten our engines"
        )
        external.restart(60)
        external.add_workers([engine.url], 60)
        external.remove_worker(engine.url, 60)
        assert external.look(), "an engine that we take out is not missed"


def test_somebody_elses_router_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InferenceError, match=r"external router at 127.0.0.1:1 does not answer, after 0 s"):
        ExternalRouter(NOBODY).wait_ready(0)


def test_a_router_that_has_ended_is_reported_at_once(empty: Router, engine: EngineServer) -> None:
    """The last test here: the router doesn't come back."""
    (server, *_) = psutil.Process(empty.pid).children(recursive=True)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    with pytest.raises(InferenceError, match="router"):
        empty.add_workers([engine.url], 60)
    until(lambda: not empty.is_running, "the supervisor has ended, too")
    with pytest.raises(InferenceError, match=r"router has ended\.\nThe last lines of"):
        empty.check()
