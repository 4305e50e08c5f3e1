"""An event loop in a thread of its own: users' functions are asynchronous, their callers are not.

Held: a coroutine that fails leaves no task of its own behind; the first failure is the one that is raised; a loop that
a function holds up is talked about after a while, and given up after a longer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from slime.rollout.types import RolloutError

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 5.0  # between two looks whether the loop runs
HELD_UP_S = 300.0  # after which it is given up


class EventLoop:
    """Lives as long as its owner, so that connections opened in it are there for the next rollout."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._held_up: RolloutError | None = None
        self._closing = threading.Event()
        threading.Thread(target=self._look, name=f"{name}: watch", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine to its end. An interrupt of the caller (Ctrl+C) cancels it. Raises RolloutError when
        something has held up the loop for HELD_UP_S."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                f"{self._thread.name}: called from within the loop, which would wait for itself: use await"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return self._result(future)
        except BaseException:
            future.cancel()
            raise

    def _result(self, future: Future[T]) -> T:
        while True:
            if self._held_up is not None:
                raise self._held_up
            try:
                return future.result(timeout=LOOK_S)
            except TimeoutError:
                if future.done():  # it raised its own, or has ended since
                    return future.result()

    def _look(self) -> None:
        """Says where the loop stands, when it does not get on."""
        while not self._closing.wait(LOOK_S):
            since, due, runs = time.monotonic(), 2 * LOOK_S, threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(runs.set)
            while not runs.wait(LOOK_S) and not self._closing.is_set():
                seconds = time.monotonic() - since
                if seconds < due:
                    continue
                due *= 2
                said = (
                    f"{self._place()} has held up all that is generated and graded for {seconds:.0f} s: an `async def`"
                    " must not block; what blocks belongs into a plain function, which gets a thread"
                )
                log.warning("%s", said)
                if seconds > HELD_UP_S:
                    self._held_up = RolloutError(said)
                    return

    def _place(self) -> str:
        """The line at which the loop's thread is, outside of Python's own files."""
        frames = traceback.extract_stack(sys._current_frames()[self._thread.ident])
        own = [frame for frame in frames if "/lib/python" not in frame.filename] or frames
        return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name} ({own[-1].line})"

    def close(self) -> None:
        """Stops the loop and ends its thread. Nothing may be running in it any more."""
        self._closing.set()
        if not self._loop.is_closed() and self._held_up is None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of all, in order. When one fails the others are cancelled, and awaited, before its exception goes on."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
