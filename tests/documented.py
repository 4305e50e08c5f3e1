"""The examples of docs/hooks.md as the file that the page speaks of."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "hooks.md"
NOTING = """

import functools
import types


def _noted(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        with open({path!r}, "a") as file:
            file.write(function.__name__ + "\\n")
        return function(*args, **kwargs)

    return call


for _name, _value in list(globals().items()):
    if isinstance(_value, types.FunctionType) and not _name.startswith("_"):
        globals()[_name] = _noted(_value)
"""


def documented_hooks(calls: Path | None = None) -> str:
    """The source of my_hooks.py; its functions leave their names in `calls`, a line each time that one is called."""
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return "\n\n".join(examples) + ("" if calls is None else NOTING.format(path=str(calls)))
