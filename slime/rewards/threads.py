"""Users' plain functions, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any


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
    return await result if inspect.isawaitable(result) else result
