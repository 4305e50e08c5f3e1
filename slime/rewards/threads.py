"""Users' functions, called from an event loop: plain ones in threads, asynchronous ones so that they can't end it.

Held: `call_within` returns in its time, whatever the function makes of being cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

GRACE_S = 5.0
"""How long a coroutine that was cancelled may take to end; then it is left behind."""


class TooLate(Exception):
    """A function has not returned in its time."""


async def call_within(limit: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As `call`. Raises TooLate after `limit` seconds. In a task of its own: one that swallows its cancellation, as a
    bare `except` around a retry does, would otherwise hold up its caller for ever."""
    task = asyncio.create_task(call(function, *args, **kwargs))
    try:
        await asyncio.wait({task}, timeout=limit)
        if not task.done():
            raise TooLate
        if task.cancelled():  # by itself, for we have not
            raise RuntimeError("it has cancelled the task that it ran in")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody asks any more
            await asyncio.wait({task}, timeout=GRACE_S)


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a coroutine function, or a plain one, which gets a thread: it must not stop the loop."""
    if inspect.iscoroutinefunction(function):
        return await _contained(function(*args, **kwargs))
    return await in_thread(function, *args, **kwargs)


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a plain function in a daemon thread, which ends with the process even when the function never returns."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if not done.done():  # the caller may have given up
            done.set_result((result, error))

    def run() -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except Exception as raised:
            error = raised
        except BaseException as raised:  # sys.exit() in a user's function ends that, not the rollout without a word
            error = RuntimeError(repr(raised))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=getattr(function, "__name__", "hook"), daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return await _contained(result) if inspect.isawaitable(result) else result


async def _contained(awaitable: Awaitable[Any]) -> Any:
    """What would end the loop, or pass for the end of its caller, when a user's coroutine raises it is an error."""
    try:
        return await awaitable
    except (Exception, GeneratorExit):
        raise
    except BaseException as raised:
        if isinstance(raised, asyncio.CancelledError) and asyncio.current_task().cancelling():
            raise
        raise RuntimeError(repr(raised)) from raised
