"""A second engine: two ranks, a token, metrics; and what happens when the process that started it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from slime.inference.client import GenerateClient, Generation
from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError, RequestError
from slime.inference.router import Router
from slime.inference.server import EngineServer
from tests.conftest import START_TIMEOUT_S
from tests.inference.conftest import Run
from tests.inference.hf import Reference
from tests.inference.test_generation import LONG, MANY, check, prompts
from tests.inference.test_process import until
from tests.processes import in_dev_shm

TOKEN = "only-for-this-run"
STARTER = """
import json, sys, time
from pathlib import Path
from slime.inference.server import EngineServer
model, log, token, timeout = sys.argv[1:]
options = {"enable_metrics": True}
server = EngineServer(model, log_path=Path(log), tp_size=2, token=token, options=options, name="doomed")
server.start()
server.wait_ready(float(timeout))
print(json.dumps({"url": server.url, "pid": server.pid}), flush=True)
time.sleep(3600)
"""


@dataclass
class Doomed:
    """The second engine, in the care of `starter`; its temporary files are below `temporary`."""

    starter: subprocess.Popen[bytes]
    control: EngineControl
    processes: list[psutil.Process]
    temporary: Path


@pytest.fixture(scope="module")
def doomed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doomed]:
    log = tmp_path_factory.mktemp("doomed") / "engine.log"
    temporary = tmp_path_factory.mktemp("t")
    command = [sys.executable, "-c", STARTER, str(tiny_model), str(log), TOKEN, str(START_TIMEOUT_S)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "TMPDIR": str(temporary)}
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    started = json.loads(starter.stdout.readline())
    supervisor = psutil.Process(started["pid"])
    control = EngineControl(started["url"], TOKEN, name="doomed")
    yield Doomed(starter, control, [supervisor, *supervisor.children(recursive=True)], temporary)
    starter.kill()
    starter.wait()


@pytest.fixture
def direct(doomed: Doomed, run: Run) -> Iterator[GenerateClient]:
    """Straight to the second engine."""
    client = GenerateClient(doomed.control.url, TOKEN, timeout=120)
    yield client
    run(client.close())


def test_two_ranks_generate_what_hf_does(direct: GenerateClient, reference: Reference, run: Run) -> None:
    prompt = prompts(1, seed=20)[0]
    (generation,) = run(direct.generate(prompt, {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}))
    assert generation.tokens == reference.greedy(prompt, 16)
    check(reference, prompt, generation)


def test_both_ranks_are_in_the_checksum(doomed: Doomed) -> None:
    ranks = [info["parallelism_info"][0]["tp_rank"] for info in doomed.control.weights_checksum()]
    assert sorted(ranks) == [0, 1]


def test_without_the_token_nothing_is_answered(doomed: Doomed, run: Run) -> None:
    async def ask() -> None:
        async with GenerateClient(doomed.control.url, timeout=60) as client:
            await client.generate([5], {})

    with pytest.raises(RequestError, match="401"):
        run(ask())
    with pytest.raises(RequestError, match="401"):
        EngineControl(doomed.control.url, "wrong").flush_cache()


def test_no_command_line_shows_the_token(doomed: Doomed) -> None:
    # A rank's title is its own; what was started carries the words it was started with.
    assert not any(TOKEN in word for process in doomed.processes for word in process.cmdline())


def test_metrics_and_queue_times_when_asked_for(doomed: Doomed, direct: GenerateClient, run: Run) -> None:
    (generation,) = run(direct.generate([5, 6], {"max_new_tokens": 2, "ignore_eos": True}))
    assert generation.queue_time is not None and generation.queue_time >= 0
    assert "sglang:" in doomed.control.metrics()


def test_a_session_stays_on_one_engine(engine: EngineServer, doomed: Doomed, tmp_path: Path, run: Run) -> None:
    """Under the policy `manual`; the engine's own cache counter tells where a prompt has been before."""
    prompt = prompts(1, seed=22, shortest=30)[0]

    async def cached(client: GenerateClient, session: str) -> int:
        (generation,) = await client.generate(prompt, {"max_new_tokens": 1}, session=session)
        return generation.cached_tokens

    with Router(log_path=tmp_path / "router.log", options={"policy": "manual"}) as router:
        router.wait_ready(START_TIMEOUT_S)
        router.add_workers([engine.url], START_TIMEOUT_S)
        router.add_workers([doomed.control.url], START_TIMEOUT_S, token=TOKEN)
        client = GenerateClient(router.url, timeout=60)
        for k in range(6):
            engine.control.flush_cache()
            doomed.control.flush_cache()
            first, *later = [run(cached(client, f"session {k}")) for _ in range(4)]
            assert first == 0
            assert later == [len(prompt) - 1] * 3
        run(client.close())


@dataclass
class Aftermath:
    generations: list[Generation]
    survivors: list[psutil.Process]
    files: list[Path]


@pytest.fixture(scope="module")
def aftermath(engine: EngineServer, doomed: Doomed, tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    """Kills the starter of the second engine while both engines are generating behind one router."""
    shared_memory = in_dev_shm(doomed.processes)

    async def busy() -> bool:
        loads = [await asyncio.to_thread(control.loads) for control in (engine.control, doomed.control)]
        return all(load["num_running_reqs"] for (load,) in loads)

    async def kill_midway(url: str) -> list[Generation]:
        async with GenerateClient(url, timeout=120) as client, asyncio.timeout(300):
            asked = [asyncio.create_task(client.generate(prompt, LONG)) for prompt in prompts(8, seed=23)]
            while not await busy():
                await asyncio.sleep(0.01)
            os.kill(doomed.starter.pid, signal.SIGKILL)
            return [generation for (generation,) in await asyncio.gather(*asked)]

    with Router(log_path=tmp_path_factory.mktemp("aftermath") / "router.log") as router:
        router.wait_ready(START_TIMEOUT_S)
        router.add_workers([engine.url], START_TIMEOUT_S)
        router.add_workers([doomed.control.url], START_TIMEOUT_S, token=TOKEN)
        generations = asyncio.run(kill_midway(router.url))
    _, survivors = psutil.wait_procs(doomed.processes, timeout=30)
    return Aftermath(generations, survivors, [*doomed.temporary.iterdir(), *filter(Path.exists, shared_memory)])


def test_requests_of_a_killed_engine_are_served_by_another(aftermath: Aftermath, reference: Reference) -> None:
    assert [len(generation.tokens) for generation in aftermath.generations] == [MANY] * 8
    for prompt, generation in zip(prompts(8, seed=23), aftermath.generations, strict=True):
        check(reference, prompt, generation)


def test_nothing_of_an_engine_is_left_when_its_starter_was_killed(aftermath: Aftermath) -> None:
    assert aftermath.survivors == []
    assert aftermath.files == []


def test_with_no_engine_left_the_request_fails_at_its_deadline(doomed: Doomed, aftermath: Aftermath, run: Run) -> None:
    async def ask() -> None:
        async with GenerateClient(doomed.control.url, TOKEN, timeout=1) as client:
            await client.generate([5], {})

    with pytest.raises(InferenceError, match=r"given up after 1 s, at last: .*connection lost"):
        run(ask())


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the engines of a test put temporary files; not in tmp_path, which is too long for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="t") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield Path(directory)


def test_a_model_without_weights_is_reported_with_the_end_of_the_log(
    tmp_path: Path, tiny_model: Path, temporary: Path
) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    (empty / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    with EngineServer(empty, log_path=tmp_path / "engine.log") as server:
        with pytest.raises(
            InferenceError, match=r"(?s)engine did not start: RuntimeError: Cannot find any model weights.*engine\.log"
        ):
            server.wait_ready(START_TIMEOUT_S)
    assert list(temporary.iterdir()) == []


def test_an_engine_stopped_while_it_starts_leaves_nothing(tmp_path: Path, tiny_model: Path, temporary: Path) -> None:
    server = EngineServer(tiny_model, log_path=tmp_path / "engine.log")
    server.start()
    supervisor = psutil.Process(server.pid)
    until(lambda: len(supervisor.children(recursive=True)) >= 3, "the engine has started its workers", START_TIMEOUT_S)
    processes = [supervisor, *supervisor.children(recursive=True)]
    shared_memory = in_dev_shm(processes)
    server.stop()
    assert not any(process.is_running() for process in processes)
    assert [*temporary.iterdir(), *filter(Path.exists, shared_memory)] == []
