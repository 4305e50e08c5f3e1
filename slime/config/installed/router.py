"""The options of the installed sglang-router: the calls of `add_argument(f"--{prefix}name", ...)` in RouterArgs."""

from __future__ import annotations

import ast
from typing import Any

from slime.config.installed import source
from slime.config.option import Option

RESERVED = {
    "request_timeout_secs": "--sglang-router-request-timeout-secs",
    "prefill": "the placement of the engines",
    "decode": "the placement of the engines",
}


def read() -> dict[str, Option]:
    """Name -> option. Raises NotInstalled."""
    tree = source.parse(source.package("sglang_router", "router_args.py") / "router_args.py")
    fields = {
        node.target.id: node.value
        for node in source.classes(tree)["RouterArgs"].body
        if isinstance(node, ast.AnnAssign)
    }
    defaults = {}
    for name, value in fields.items():
        try:
            defaults[name] = source.read_value(value)
        except source.Unreadable:
            continue
    options = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        match call:
            case ast.Call(
                func=ast.Attribute(attr="add_argument"),
                args=[ast.JoinedStr(values=[*_, ast.Constant(value=str(tail))]), *_],
            ):
                name = tail.replace("-", "_")
                words = {word.arg: word.value for word in call.keywords}
                options[name] = Option(
                    name,
                    _type(words),
                    _default(name, words, defaults),
                    source.read_text(words.get("help")),
                    family="router",
                )
    return options


def _type(words: dict[str, ast.AST]) -> Any:
    if "action" in words and "store_true" in ast.unparse(words["action"]):
        return bool
    kind = source.read_type(words["type"]) if "type" in words else str
    if "nargs" in words:
        kind = source.list_of(kind)
    return source.limited(kind | None, words.get("choices"))


def _default(name: str, words: dict[str, ast.AST], defaults: dict[str, Any]) -> Any:
    try:
        return source.read_value(words["default"], defaults)
    except (KeyError, source.Unreadable):  # none given, or taken from the environment at the router's start
        return defaults.get(name)
