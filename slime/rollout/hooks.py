"""Users' functions, called whether or not they are asynchronous."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from slime.rewards.threads import in_thread


async def call(hook: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls a hook that may be a coroutine function or a plain one, which gets a thread: it must not stop the loop."""
    return await (hook(*args, **kwargs) if inspect.iscoroutinefunction(hook) else in_thread(hook, *args, **kwargs))


def accepts(hook: Callable, keyword: str) -> bool:
    """Whether the hook can be given this keyword argument."""
    parameters = inspect.signature(hook).parameters.values()
    return any(
        p.kind is p.VAR_KEYWORD or (p.name == keyword and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        for p in parameters
    )
