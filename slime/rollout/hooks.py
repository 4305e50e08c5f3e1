"""Users' functions in the event loop, whether or not they are asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from slime.config.hooks import Hook
from slime.rewards.threads import call
from slime.rollout.types import RolloutError


async def ask(hook: Hook, subject: str, limit: float, *args: Any, **kwargs: Any) -> Any:
    """What the hook returns. Raises RolloutError, with the name of the `subject`, for whatever it raises, and when it
    takes more than `limit` seconds."""
    try:
        async with asyncio.timeout(limit) as timer:
            return await call(hook.function, *args, **kwargs)
    except Exception as error:
        if timer.expired():
            what = f"did not return within {limit:g} s (--sglang-router-request-timeout-secs)"
        else:
            what = f"raised {type(error).__name__}: {error}"
        raise RolloutError(f"{subject}: {hook} {what}") from error


def accepts(function: Callable[..., Any], keyword: str) -> bool:
    """Whether the function can be given this keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    return any(
        p.kind is p.VAR_KEYWORD or (p.name == keyword and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        for p in parameters
    )
