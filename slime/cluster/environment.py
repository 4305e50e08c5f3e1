"""The environment of this process, changed for a while; what is started meanwhile inherits it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Sets variables inside the block, takes away those that are None, and puts back what was before."""
    before = {name: os.environ.get(name) for name in values}
    _update(values)
    try:
        yield
    finally:
        _update(before)


def _update(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
