"""Users' functions in the event loop."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from slime.config.hooks import load_hook
from slime.rollout.hooks import accepts, ask
from slime.rollout.types import RolloutError


async def later(value: int) -> int:
    return value


def plain(value: int) -> int:
    return value


async def leaves(value: int) -> None:
    sys.exit(2)


async def gives_itself_up(value: int) -> None:
    raise asyncio.CancelledError("a request of mine")


async def hangs(value: int) -> None:
    await asyncio.Event().wait()


def blocks(value: int) -> None:
    time.sleep(60)


def asked(name: str, limit: float = 30) -> Any:
    return asyncio.run(ask(load_hook("--option", f"{__name__}.{name}"), "sample 3", limit, 1))


@pytest.mark.parametrize("name", ["later", "plain"])
def test_plain_and_asynchronous_functions(name: str) -> None:
    assert asked(name) == 1


@pytest.mark.parametrize(
    ("name", "error"), [("leaves", r"SystemExit\(2\)"), ("gives_itself_up", r"CancelledError\('a request of mine'\)")]
)
def test_what_would_end_the_loop_is_an_error_of_the_function(name: str, error: str) -> None:
    with pytest.raises(RolloutError, match=rf"^sample 3: --option {__name__}\.{name} raised RuntimeError: {error}"):
        asked(name)


def test_that_is_cancelled_is_not_blamed() -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(ask(load_hook("--option", f"{__name__}.hangs"), "sample 3", 30, 1))
        await asyncio.sleep(0.05)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


@pytest.mark.parametrize("name", ["hangs", "blocks"])
def test_has_a_deadline(name: str) -> None:
    with pytest.raises(RolloutError, match=rf"{name} did not return within 0.1 s \(--sglang-router-request-timeout"):
        asked(name, limit=0.1)


def test_accepts() -> None:
    assert accepts(lambda sample, evaluation=False: None, "evaluation")
    assert accepts(lambda sample, **kwargs: None, "evaluation")
    assert not accepts(lambda sample: None, "evaluation")
