from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from slime.rollout.loop import EventLoop, all_of


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop("test")
    yield loop
    loop.close()


async def give(value: int, pause: float = 0.0) -> int:
    await asyncio.sleep(pause)
    return value


async def fail(error: Exception) -> None:
    raise error


def test_results_in_order(loop: EventLoop) -> None:
    assert loop.run(all_of(give(i, 0.01 * (3 - i)) for i in range(3))) == [0, 1, 2]


def test_the_same_loop_each_time(loop: EventLoop) -> None:
    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert loop.run(running()) is loop.run(running())


def test_the_first_failure_cancels_the_others_and_waits_for_them(loop: EventLoop) -> None:
    ended = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("slow")

    with pytest.raises(KeyError, match="first"):
        loop.run(all_of([slow(), slow(), fail(KeyError("first"))]))
    assert ended == ["slow", "slow"]


def test_called_from_within(loop: EventLoop) -> None:
    async def nested() -> int:
        return loop.run(give(1))

    with pytest.raises(RuntimeError, match="would wait for itself"):
        loop.run(nested())
