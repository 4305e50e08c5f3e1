"""An event loop in a thread of its own: users' functions are asynchronous, their callers are not.

Held: a coroutine that fails leaves no task of its own behind; the first failure is the one that is raised.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoop:
    """Lives as long as its owner, so that connections opened in it are there for the next rollout."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine to its end. An interrupt of the caller (Ctrl+C) cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                f"{self._thread.name}: called from within the loop, which would wait for itself: use await"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stops the loop and ends its thread. Nothing may be running in it any more."""
        if not self._loop.is_closed():
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
