"""Servers that rooms share: starting an engine takes as long as running hundreds of tests against it.

Whoever changes the engine's weights puts them back; nobody leaves it paused.
"""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from slime.inference.router import Router
from slime.inference.server import EngineServer
from slime.tiny import write_checkpoint

settings.register_profile("slime", deadline=None)  # how long an example takes is the business of the machine
settings.load_profile("slime")

START_TIMEOUT_S = 300.0  # an engine alone on two cores takes 10 s
LONGEST = (
    *("test_end_to_end.py", "test_faults.py", "test_resume.py", "test_sync.py", "test_parallel.py", "test_restarts.py"),
    *("test_engine_groups.py", "test_checkpoint.py"),
)


def parse_without_collecting_garbage() -> None:
    """Python 3.11's parser fails with "AST constructor recursion depth mismatch" when garbage is collected in it whose
    finalizer parses, too; pytest parses where a finalizer raises, to show that."""
    parse = ast.parse

    def alone(*args: Any, **kwargs: Any) -> ast.AST:
        collects = gc.isenabled()
        gc.disable()
        try:
            return parse(*args, **kwargs)
        finally:
            if collects:
                gc.enable()

    ast.parse = alone


if sys.version_info < (3, 12):
    parse_without_collecting_garbage()


def pytest_configure() -> None:
    """What a shell runs in the background ignores Ctrl+C, and so would all that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker begins one of them when the others have nothing left.

    xdist keeps to it with --no-loadscope-reorder; by itself it begins with the files of most tests.
    """
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For all that tests start. What they kill leaves files in it, which go with it; its path is short, for sockets."""
    tmp_path_factory.getbasetemp(), get_temp_dir()  # are to stay when it goes
    compiled = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
    with (
        tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled))
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 checkpoint with random weights, in HF's files."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """A running engine with the weights of `tiny_model`, and its tokenizer, for stop texts."""
    log_path, options = tmp_path_factory.mktemp("engine") / "engine.log", {"skip_tokenizer_init": False}
    with EngineServer(tiny_model, log_path=log_path, options=options) as server:
        server.wait_ready(START_TIMEOUT_S)
        yield server


@pytest.fixture(scope="session")
def router(engine: EngineServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A running router in front of `engine`."""
    with Router(log_path=tmp_path_factory.mktemp("router") / "router.log") as server:
        server.wait_ready(START_TIMEOUT_S)
        server.add_workers([engine.url], START_TIMEOUT_S)
        yield server
