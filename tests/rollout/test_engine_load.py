"""How busy an engine is, asked of a real one while it generates."""

from __future__ import annotations

import asyncio

from slime.inference.client import GenerateClient
from slime.inference.control import EngineControl
from slime.observe.names import find
from slime.rollout.engine_load import EngineLoad


async def generate(url: str) -> None:
    async with GenerateClient(url) as client:
        await client.generate([5, 6, 7], {"max_new_tokens": 400, "ignore_eos": True}, n=8)


def test_of_an_engine_that_generates(engine):
    with EngineLoad(lambda: [engine.control]) as load:
        asyncio.run(generate(engine.url))
    metrics = load.metrics()
    assert 0 < metrics["perf/kv_cache_utilization"] < 0.1  # of 65,536 tokens, 8 x 403 at most
    assert 0 < metrics["perf/engine_running_requests"] <= 8 and metrics["perf/engine_waiting_requests"] == 0
    assert all(map(find, metrics))


def test_nobody_who_answers_is_no_metric():
    with EngineLoad(lambda: [EngineControl("http://127.0.0.1:9")]) as load:
        load._ended.wait(0.5)
    assert load.metrics() == {}
    with EngineLoad(lambda: []) as load:
        pass
    assert load.metrics() == {}
