"""Users' functions that do what they like: whoever calls them has an answer in time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from slime.rewards import threads
from slime.rewards.threads import TooLate, call_within

FOR_EVER = 600.0  # as the deadline of these tests goes


async def doubles(x: int) -> int:
    return 2 * x


async def heeds_nothing() -> None:
    """As a retry with a bare `except` does, around a request that fails."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)


async def cancels_itself() -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(1000)


class Alien(BaseException):
    pass


async def raises_what_is_no_exception() -> None:
    raise Alien("out of order")


def sleeps() -> None:
    time.sleep(20)


@pytest.fixture(autouse=True)
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "GRACE_S", 0.05)


def ends(limit: float, function: Callable[..., Any], *args: Any) -> Any:
    """What the call comes to, and that it does: what is left behind is ended with the loop, which would wait for it."""

    async def outcome() -> Any:
        task = asyncio.create_task(call_within(limit, function, *args))
        done, _ = await asyncio.wait({task}, timeout=10)
        assert done, "the call goes on"
        return task

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(outcome()).result()
    finally:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()


def test_what_a_function_returns():
    assert ends(FOR_EVER, doubles, 3) == 6
    assert ends(FOR_EVER, lambda x: x + 1, 3) == 4


@pytest.mark.parametrize("function", [heeds_nothing, sleeps])
def test_a_function_that_does_not_return_is_left_behind(function):
    with pytest.raises(TooLate):
        ends(0.05, function)


@pytest.mark.parametrize(
    ("function", "says"), [(cancels_itself, "cancelled the task"), (raises_what_is_no_exception, "Alien")]
)
def test_what_is_no_exception_of_a_function_is_made_one(function, says):
    with pytest.raises(RuntimeError, match=says):
        ends(FOR_EVER, function)


def test_a_caller_that_is_cancelled_ends_though_the_function_does_not():
    async def cancelled() -> bool:
        task = asyncio.create_task(call_within(FOR_EVER, heeds_nothing))
        await asyncio.sleep(0.01)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10)
        return bool(done) and task.cancelled()

    assert ends(FOR_EVER, cancelled)
