"""Users' functions, found by their path. Imported when they are needed, not when options are read."""

from __future__ import annotations

import importlib
from collections.abc import Callable


class HookError(ValueError):
    """There is no such function."""


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
        raise HookError(f"{option} {path}: there is no module {error.name!r} on the Python path") from error
    except AttributeError as error:
        raise HookError(f"{option} {path}: {module_name} has no {attribute!r}") from error
