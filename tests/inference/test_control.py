"""Control calls on a real engine: weights in, memory out, and errors that name the engine."""

from __future__ import annotations

import asyncio
import base64
import io
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from torch.distributed import ProcessGroup, TCPStore
from torch.distributed import distributed_c10d as c10d

from slime.inference.client import GenerateClient, Generation
from slime.inference.control import EngineControl, call_all
from slime.inference.errors import InferenceError, RequestError
from slime.inference.server import EngineServer
from tests.inference.conftest import Run
from tests.inference.hf import Reference
from tests.inference.test_generation import LONG, MANY, check, until_generating

PROMPT = [5, 9, 30, 41, 17]


def handles(tensors: dict[str, torch.Tensor]) -> str:
    """The tensors moved into shared memory, and what an engine needs to map them."""
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump([(name, tensor.clone().share_memory_()) for name, tensor in tensors.items()])
    return base64.b64encode(buffer.getvalue()).decode()


def update(control: EngineControl, tensors: dict[str, torch.Tensor], version: str, flush_cache: bool = True) -> None:
    control.begin_weight_update()
    control.update_weights_from_tensor(
        serialized_named_tensors=[handles(tensors)], flush_cache=flush_cache, weight_version=version
    )
    control.end_weight_update()


def other_weights(reference: Reference) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in reference.tensors().items()}


@pytest.fixture
def control(engine: EngineServer, reference: Reference) -> Iterator[EngineControl]:
    """Puts the weights back afterwards."""
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield engine.control
    update(engine.control, reference.tensors(), "default")
    torch.multiprocessing.set_sharing_strategy(strategy)


@pytest.fixture
def changed(reference: Reference, tiny_model) -> Reference:
    changed = Reference(tiny_model)
    changed.model.load_state_dict(other_weights(reference), strict=False)
    return changed


def test_weights_through_shared_memory(
    control: EngineControl, client: GenerateClient, reference: Reference, changed: Reference, run: Run
) -> None:
    before = control.weights_checksum()
    update(control, changed.tensors(), "7")
    assert control.weights_checksum()[0]["per_gpu_checksum"] != before[0]["per_gpu_checksum"]
    (generation,) = run(client.generate(PROMPT, {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}))
    assert generation.weight_versions == [("7", 16)]
    assert generation.tokens == changed.greedy(PROMPT, 16)
    check(changed, PROMPT, generation)
    update(control, reference.tensors(), "8")
    assert control.weights_checksum() == before


def test_weights_changed_in_the_middle_of_a_sample(
    control: EngineControl, engine: EngineServer, client: GenerateClient, changed: Reference, run: Run
) -> None:
    """Each token carries the version of the weights that made it."""

    async def change_midway() -> Generation:
        request = asyncio.create_task(client.generate(PROMPT, LONG))
        await until_generating(engine)
        await asyncio.to_thread(control.pause, "in_place")
        try:
            await asyncio.to_thread(update, control, changed.tensors(), "9", flush_cache=False)
        finally:
            await asyncio.to_thread(control.resume)
        return (await request)[0]

    generation = run(change_midway())
    (old, before), (new, after) = generation.weight_versions
    assert (old != "9", new, before + after) == (True, "9", MANY)
    assert before > 0 and after > 0


def test_after_a_change_nothing_is_left_of_the_old_weights_but_the_tokens(
    control: EngineControl,
    engine: EngineServer,
    client: GenerateClient,
    reference: Reference,
    changed: Reference,
    run: Run,
) -> None:
    """As WeightSync does it: what is under way is retracted, caches are flushed, and the new weights read all tokens
    again. So each log-prob is of one model, given all before it; with old keys and values it would be of neither."""

    async def change_midway() -> list[Generation]:
        request = asyncio.create_task(client.generate(PROMPT, LONG, n=2))
        await until_generating(engine)
        await asyncio.to_thread(control.pause, "retract")
        try:
            await asyncio.to_thread(control.flush_cache)
            await asyncio.to_thread(update, control, changed.tensors(), "9")
        finally:
            await asyncio.to_thread(control.resume)
        return await request

    for generation in run(change_midway()):
        (_, before), (new, after) = generation.weight_versions
        assert (new, before + after) == ("9", MANY) and before > 0 and after > 0
        of_old, of_new = (model.log_probs(PROMPT, generation.tokens) for model in (reference, changed))
        assert generation.log_probs == pytest.approx(of_old[:before] + of_new[before:], abs=1e-4)


def test_weights_by_broadcast(control: EngineControl, changed: Reference) -> None:
    weights = changed.tensors()
    update(control, weights, "a")
    expected = control.weights_checksum()
    update(control, {name: torch.zeros_like(tensor) for name, tensor in weights.items()}, "b")
    store = TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=timedelta(seconds=120), wait_for_workers=False)
    where = {"master_address": "127.0.0.1", "master_port": store.port, "rank_offset": 1, "world_size": 2}
    with ThreadPoolExecutor(1) as waiter:
        joined = waiter.submit(control.init_weights_update_group, group_name="test", backend="gloo", **where)
        group = join(store, "test")
        joined.result()
        control.begin_weight_update()
        received = waiter.submit(
            control.update_weights_from_distributed,
            names=list(weights),
            dtypes=["float32"] * len(weights),
            shapes=[tuple(tensor.shape) for tensor in weights.values()],
            group_name="test",
        )
        for tensor in weights.values():
            torch.distributed.broadcast(tensor, src=0, group=group)
        received.result()
        control.end_weight_update()
    assert control.weights_checksum() == expected
    control.destroy_weights_update_group(group_name="test")
    torch.distributed.destroy_process_group(group)


def join(store: TCPStore, name: str) -> ProcessGroup:
    """As rank 0 of two, without a default group, as the engine does it on its side."""
    group, _ = c10d._new_process_group_helper(
        2, 0, [], c10d.Backend("gloo"), c10d.PrefixStore(name, store), group_name=name, timeout=timedelta(seconds=120)
    )
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group


def test_an_update_that_was_not_begun_is_refused_with_the_engines_words(
    control: EngineControl, reference: Reference
) -> None:
    with pytest.raises(
        RequestError,
        match=r"engine at http://127.0.0.1:\d+: POST /update_weights_from_tensor: 400 .*begin_weight_update",
    ):
        control.update_weights_from_tensor(serialized_named_tensors=[handles({})])


def test_a_busy_engine_does_not_release_its_memory(engine: EngineServer, client: GenerateClient, run: Run) -> None:
    async def release_midway() -> Generation:
        request = asyncio.create_task(client.generate(PROMPT, LONG))
        await until_generating(engine)
        await asyncio.to_thread(engine.control.pause, "in_place")
        try:
            with pytest.raises(InferenceError, match=r"engine at .* only an idle engine can release its memory"):
                await asyncio.to_thread(engine.control.release_memory, wait=0.2)
        finally:
            await asyncio.to_thread(engine.control.resume)
        return (await request)[0]

    assert len(run(release_midway()).tokens) == MANY


def test_an_engine_with_retracted_requests_can_be_flushed_and_goes_on(
    engine: EngineServer, client: GenerateClient, reference: Reference, run: Run
) -> None:
    async def flush_midway() -> Generation:
        request = asyncio.create_task(client.generate(PROMPT, {"temperature": 0, **LONG}))
        await until_generating(engine)
        await asyncio.to_thread(engine.control.pause, "retract")
        try:
            await asyncio.to_thread(engine.control.flush_cache)
        finally:
            await asyncio.to_thread(engine.control.resume)
        return (await request)[0]

    check(reference, PROMPT, run(flush_midway()))


def test_an_idle_engine_releases_and_resumes_its_memory(engine: EngineServer, client: GenerateClient, run: Run) -> None:
    run(client.generate(PROMPT, {"max_new_tokens": 2, "ignore_eos": True}))
    engine.control.release_memory()
    engine.control.health()
    engine.control.resume_memory(["weights"])
    engine.control.resume_memory(["kv_cache"])
    (generation,) = run(client.generate(PROMPT, {"max_new_tokens": 2, "ignore_eos": True}))
    assert len(generation.tokens) == 2


def test_the_state_of_an_engine(engine: EngineServer) -> None:
    (load,) = engine.control.loads()
    assert load["max_running_requests"] == 256
    assert engine.control.server_info()["dtype"] == "float32"
    with pytest.raises(RequestError, match="GET /metrics: 404"):
        engine.control.metrics()


def test_a_control_travels(engine: EngineServer) -> None:
    assert pickle.loads(pickle.dumps(engine.control)) == engine.control


def test_all_engines_are_called_with_their_own_arguments() -> None:
    class Echo:
        def call(self, **arguments: int) -> dict[str, int]:
            return arguments

    assert call_all([Echo(), Echo()], "call", each=[{"rank": 1}, {"rank": 2}], size=3) == [
        {"size": 3, "rank": 1},
        {"size": 3, "rank": 2},
    ]
    assert call_all([], "call") == []


def test_the_first_error_of_several_engines_names_its_engine(engine: EngineServer) -> None:
    engines = [engine.control, EngineControl("http://127.0.0.1:1", name="engine 1")]
    with pytest.raises(InferenceError, match=r"engine 1 at http://127.0.0.1:1: POST /flush_cache.*refused"):
        call_all(engines, "flush_cache")


def test_a_call_has_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InferenceError, match=r"slow at .*: no answer within 0.2 s"):
            EngineControl(url, name="slow", timeout=0.2).flush_cache()
