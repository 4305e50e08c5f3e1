"""Users' functions, called from an event loop: plain ones in threads, asynchronous ones so that they can't end it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any


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
    except (SystemExit, KeyboardInterrupt) as raised:
        raise RuntimeError(repr(raised)) from raised
    except asyncio.CancelledError as raised:
        if asyncio.current_task().cancelling():
            raise
        raise RuntimeError(repr(raised)) from raised
