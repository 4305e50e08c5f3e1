from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from slime.inference.client import GenerateClient
from slime.inference.router import Router
from tests.inference.hf import Reference

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs coroutines one after another in one event loop, as a long-lived client would."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def client(router: Router, run: Run) -> Iterator[GenerateClient]:
    """Through the router."""
    client = GenerateClient(router.url, timeout=120)
    yield client
    run(client.close())
