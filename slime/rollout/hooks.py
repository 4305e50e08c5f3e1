"""Users' functions: found by their path, called whether or not they are asynchronous."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from slime.rollout.types import RolloutError


def load_hook(option: str, path: str | None) -> Callable | None:
    """The function that `path` ("module.attr") names, None for None. `option` is where it was named, for messages."""
    if path is None:
        return None
    module_name, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; it is one of its own imports that fails
        raise RolloutError(f"{option} {path}: there is no module {error.name!r} on the Python path") from error
    except AttributeError as error:
        raise RolloutError(f"{option} {path}: {module_name} has no {attribute!r}") from error


async def call(hook: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls a hook that may be a coroutine function or a plain one."""
    result = hook(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def accepts(hook: Callable, keyword: str) -> bool:
    """Whether the hook can be given this keyword argument."""
    parameters = inspect.signature(hook).parameters.values()
    return any(
        p.kind is p.VAR_KEYWORD or (p.name == keyword and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        for p in parameters
    )
