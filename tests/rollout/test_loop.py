from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from slime.rollout import loop as module
from slime.rollout.loop import EventLoop, all_of
from slime.rollout.types import RolloutError


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


def test_what_holds_up_the_loop_is_named_and_in_the_end_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "HELD_UP_S", 0.5)
    loop = EventLoop("test")

    async def blocks() -> None:
        time.sleep(30)

    where = r"test_loop\.py:\d+ in blocks \(time\.sleep\(30\)\) has held up all .* an `async def` must not block"
    with pytest.raises(RolloutError, match=where):
        loop.run(blocks())
    assert len(caplog.messages) > 1
    loop.close()


def test_what_ends_just_when_its_end_is_looked_for_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, loop: EventLoop
) -> None:
    class Late(Future):
        def result(self, timeout: float | None = None) -> str:
            try:
                return super().result(timeout)
            except TimeoutError:
                self.set_result("the batch")  # in the loop's thread, which has its turn just here
                raise

    monkeypatch.setattr(module, "LOOK_S", 0.05)
    assert loop._result(Late()) == "the batch"


def test_a_loop_that_runs_is_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Also when what runs in it takes longer, or ends in a TimeoutError of its own."""
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "HELD_UP_S", 0.1)
    quick = EventLoop("quick")
    assert quick.run(give(1, pause=0.5)) == 1
    with pytest.raises(TimeoutError, match="its own"):
        quick.run(fail(TimeoutError("its own")))
    assert not caplog.messages
    quick.close()
