"""Users' functions, found by their path. Imported when they are needed, not when options are read."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class HookError(ValueError):
    """A user's function that is not there, or that failed; the message says which option named it."""


def is_ours(error: BaseException) -> bool:
    """Whether it is an error of ours, which says itself what is wrong."""
    return type(error).__module__.startswith("slime.")


@contextmanager
def blaming(function: str, kind: type[Exception]) -> Iterator[None]:
    """While a user's function runs: raises `kind`, with its name, for whatever it raises, but errors of ours."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_ours(error):
            raise
        raise kind(f"{function} raised {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Hook:
    """A user's function, or class, and where it was named. Called as it is, where no event loop runs: what is
    asynchronous is waited for, by `run`."""

    option: str
    path: str
    function: Callable[..., Any]
    run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises HookError for whatever it raises, as `blaming`."""
        with blaming(str(self), HookError):
            result = self.function(*args, **kwargs)
            return self.run(_result_of(result)) if inspect.isawaitable(result) else result

    def __str__(self) -> str:
        return f"{self.option} {self.path}"


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def load_hook(option: str, path: str | None) -> Hook | None:
    """The function that `path` ("module.attr") names, None for None. `option` is where it was named, for messages."""
    if path is None:
        return None
    module_name, _, attribute = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; it is one of its own imports that fails
        raise HookError(f"{option} {path}: there is no module {error.name!r} on the Python path") from error
    except AttributeError as error:
        raise HookError(f"{option} {path}: {module_name} has no {attribute!r}") from error
    if not callable(function):
        raise HookError(f"{option} {path}: it is of type {type(function).__name__}, which nobody can call")
    return Hook(option, path, function)
