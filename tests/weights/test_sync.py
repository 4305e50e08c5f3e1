"""Real engines get exactly the trainer's weights, by either medium, from any layout of training ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime.inference.client import GenerateClient
from slime.inference.control import EngineControl
from slime.inference.server import EngineServer
from tests.conftest import START_TIMEOUT_S
from tests.distributed import run_ranks
from tests.weights.ranks import compare_after_change, push_and_compare, push_to_a_dead_one_and_again

TP2 = ["--tensor-model-parallel-size", "2"]
PP2 = ["--pipeline-model-parallel-size", "2"]
ALL_AT_ONCE, SEVERAL_BUCKETS = 1 << 20, 60_000  # bytes; the model has 411,136


@pytest.fixture
def restored(engine: EngineServer, tiny_model: Path) -> Iterator[EngineServer]:
    yield engine
    engine.control.update_weights_from_disk(model_path=str(tiny_model), weight_version="default")
    engine.control.flush_cache()


@pytest.fixture(scope="module")
def engine_tp2(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """An engine of two ranks."""
    log_path = tmp_path_factory.mktemp("engine-tp2") / "engine.log"
    with EngineServer(tiny_model, log_path=log_path, tp_size=2, name="engine of two") as server:
        server.wait_ready(START_TIMEOUT_S)
        yield server


@pytest.mark.parametrize(
    ("ranks", "options", "medium", "buffer_bytes"),
    [
        pytest.param(1, [], "broadcast", ALL_AT_ONCE, id="one rank, broadcast"),
        pytest.param(1, [], "handles", SEVERAL_BUCKETS, id="one rank, handles, several buckets"),
        pytest.param(2, [], "handles", ALL_AT_ONCE, id="DP2, handles"),
        pytest.param(2, TP2, "broadcast", SEVERAL_BUCKETS, id="TP2, broadcast, several buckets"),
        pytest.param(2, PP2, "broadcast", ALL_AT_ONCE, id="PP2, broadcast, a group for each stage"),
        pytest.param(2, PP2, "handles", SEVERAL_BUCKETS, id="PP2, handles, several buckets"),
    ],
)
def test_engine_has_the_trainers_weights(restored, tiny_model, tmp_path, ranks, options, medium, buffer_bytes):
    arguments = (str(tiny_model), options, medium, [restored.control], buffer_bytes, str(tmp_path))
    metrics = run_ranks(push_and_compare, ranks, *arguments)
    assert sum(rank[0]["perf/update_weights_wire_bytes"] for rank in metrics) > 0
    assert not list(tmp_path.iterdir()), "the checkpoint of the comparison was left behind"


@pytest.mark.parametrize("medium", ["broadcast", "handles"])
def test_engine_of_two_ranks(engine_tp2, tiny_model, tmp_path, medium):
    arguments = (str(tiny_model), TP2, medium, [engine_tp2.control], ALL_AT_ONCE, str(tmp_path))
    run_ranks(push_and_compare, 2, *arguments)


def test_tokens_carry_the_version(restored, tiny_model, tmp_path):
    arguments = (str(tiny_model), [], "handles", [restored.control], ALL_AT_ONCE, str(tmp_path))
    run_ranks(push_and_compare, 1, *arguments)

    async def generate():
        async with GenerateClient(restored.url) as client:
            return await client.generate([5, 6, 7], {"max_new_tokens": 4, "ignore_eos": True})

    (generation,) = asyncio.run(generate())
    assert generation.weight_versions == [("6", 4)]


@pytest.mark.parametrize("medium", ["broadcast", "handles"])
def test_a_dead_engine_fails_the_update_on_every_rank_and_the_next_one_is_whole(restored, tiny_model, tmp_path, medium):
    dead = EngineControl("http://127.0.0.1:1", name="engine 1", index=1)
    arguments = (str(tiny_model), medium, restored.control, dead, str(tmp_path))
    for said in run_ranks(push_to_a_dead_one_and_again, 2, *arguments):
        assert said.startswith("engine 1 at http://127.0.0.1:1: ") and "refused" in said


def test_comparison_names_what_differs(restored, tiny_model, tmp_path):
    (message,) = run_ranks(compare_after_change, 1, str(tiny_model), [restored.control], str(tmp_path))
    assert message.splitlines()[1:] == ["  engine, rank 0: 1 of 18 tensors: model.norm.weight"]
