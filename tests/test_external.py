"""Real runs on an engine and a router that somebody else has started, and engines that cannot start."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime.inference.process import ServerProcess
from slime.inference.router import Router
from slime.inference.server import EngineServer
from tests.conftest import START_TIMEOUT_S
from tests.runs import RUN_S, assert_nothing_left, column, driver, of_no_knowledge, wait_for

END_S = 60.0
OUT_S = 3.0  # for which a server that is started again was away
CHECKS = ["--rollout-health-check-interval", "1", "--rollout-health-check-timeout", "20"]


class ColdEngine(EngineServer):
    """As users start it: its health check generates a token, and is a while in coming."""

    def environment(self) -> dict[str, str | None]:
        return super().environment() | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": None}


@pytest.fixture
def servers(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[EngineServer, Router]]:
    (tmp_path / "servers").mkdir()
    with (
        ColdEngine(tiny_model, log_path=tmp_path / "servers" / "engine.log") as engine,
        Router(log_path=tmp_path / "servers" / "router.log") as router,
    ):
        engine.wait_ready(START_TIMEOUT_S)
        router.wait_ready(START_TIMEOUT_S)
        engine._port_is_chosen = router._port_is_chosen = True  # they come back where they were
        yield engine, router


def options(tmp_path: Path, model: Path, *servers: ServerProcess) -> list[str]:
    engine, router = servers
    return [
        *of_no_knowledge(tmp_path, model),
        *("--no-colocate", "--cpu-slots", "3", "--num-rollout", "10000", "--rollout-max-response-len", "32"),
        *("--rollout-external-engine-addrs", f"{engine.host}:{engine.port}"),
        *("--sglang-router-ip", router.host, "--sglang-router-port", str(router.port)),
    ]


def started_again(server: ServerProcess) -> None:
    server.stop()
    time.sleep(OUT_S)
    server.start()


def test_engine_and_router_of_somebody_else_s_are_waited_for_and_used_again(servers, tiny_model, tmp_path):
    engine, router = servers
    output, metrics = tmp_path / "output", tmp_path / "run" / "metrics.jsonl"
    run = [*options(tmp_path, tiny_model, *servers), "--use-fault-tolerance", *CHECKS, "--check-weight-update-equal"]
    with driver(tmp_path, *run) as process:
        wait_for(metrics, '"rollout/step"', process)
        started_again(engine)
        wait_for(output, "engine 0 at .* serves again, with weights of version", process)
        wait_for(metrics, '"rollout/engine_restarts": 1', process)  # and the update after it
        started_again(router)
        wait_for(output, f"external router at {router.host}:{router.port} is up again", process)
        wait_for(metrics, '"rollout/router_restarts": 1', process)
        router.stop()
        router.start()  # at once: its end is not seen, but that it has no engine is
        wait_for(metrics, '"rollout/router_restarts": 2', process)
        process.terminate()
        process.wait(END_S)
        assert_nothing_left(tmp_path)
    said, then = output.read_text(), "the run waits up to 30 min until you have started it again, and what it was doing"
    assert re.search(f"engine 0 at .* has ended, nobody listens at its address any more; {then}", said)
    assert re.search(f"external router at .* has ended, nobody listens at its address any more; {then}", said)
    assert max(column(tmp_path / "run", "rollout/engine_restarts")) == 1


def test_without_fault_tolerance_the_end_of_somebody_else_s_router_ends_the_run(servers, tiny_model, tmp_path):
    _, router = servers
    with driver(tmp_path, *options(tmp_path, tiny_model, *servers)) as process:
        wait_for(tmp_path / "run" / "metrics.jsonl", '"rollout/step"', process)
        router.stop()
        assert process.wait(END_S) == 1
        assert_nothing_left(tmp_path)
    there = f"external router at {router.host}:{router.port} has ended, nobody listens at its address any more"
    said = (tmp_path / "output").read_text()
    assert f"InferenceError: {there}. With --use-fault-tolerance the run waits" in said


@pytest.mark.parametrize("more", [[], ["--use-fault-tolerance"]])
def test_an_engine_that_cannot_start_ends_the_run_by_its_cause(tiny_model, tmp_path, more):
    refused = ["--sglang-page-size", "3", "--sglang-chunked-prefill-size", "10"]
    run = [*of_no_knowledge(tmp_path, tiny_model), "--cpu-slots", "3", "--no-colocate", "--rollout-num-gpus", "1"]
    with driver(tmp_path, *run, *refused, *more) as process:
        assert process.wait(RUN_S) == 1
        assert_nothing_left(tmp_path)
    said = (tmp_path / "output").read_text()
    cause = (
        "InferenceError: engine 0 did not start: AssertionError: chunked_prefill_size must be divisible by page_size"
    )
    assert f"{cause} (its log: {tmp_path / 'run' / 'logs' / 'engine-0.log'})" in said.splitlines()[-2]
    assert "fault-tolerance" not in said
