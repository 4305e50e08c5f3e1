"""Reading another package's source: where it is, and the types, defaults and constants that are written in it.

Invariants: nothing of the package is imported or executed; what cannot be read is said to be unreadable, never guessed.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from slime.config.section import FrozenDict, as_json, as_list, as_size


class NotInstalled(LookupError):
    """The package is not there, or its source is not laid out as this reader knows it. The message says which."""


class Unreadable(ValueError):
    """An expression that has no value without running the package."""


BASIC_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "Any": Any}
LISTS = {"List": list, "list": list, "set": list, "Sequence": list}
ReadableInt = Annotated[int, BeforeValidator(as_size)]
_OPERATORS = {ast.Mult: operator.mul, ast.Pow: operator.pow, ast.Add: operator.add, ast.BitOr: operator.or_}


def package(name: str, probe: str) -> Path:
    """Directory of an installed top-level package. `probe` is a file in it that this version must have."""
    spec = importlib.util.find_spec(name)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / probe).exists():
            return Path(place)
    if spec is None:
        raise NotInstalled(f"{name} is not installed")
    raise NotInstalled(f"the installed {name} has no {probe}")


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def classes(module: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}


def constants(module: ast.Module) -> dict[str, Any]:
    """NAME -> value of the module's assignments that are plain literals."""
    found: dict[str, Any] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = read_value(node.value, found)
            except Unreadable:
                continue
    return found


def read_value(node: ast.AST, known: Mapping[str, Any] = {}) -> Any:
    """The value of a literal, of arithmetic on literals, or of a known name. Raises Unreadable."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in known:
            return known[name]
        case ast.List(elts=items) | ast.Set(elts=items):
            return [read_value(item, known) for item in items]
        case ast.Tuple(elts=items):
            return tuple(read_value(item, known) for item in items)
        case ast.Dict(keys=keys, values=values):
            return {read_value(key, known): read_value(value, known) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -read_value(operand, known)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](read_value(left, known), read_value(right, known))
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
            return float(text)
        case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=keywords):
            named = {keyword.arg: keyword.value for keyword in keywords}
            if "default" in named:
                return read_value(named["default"], known)
            match named.get("default_factory"):
                case ast.Name(id="list" | "tuple"):
                    return []
                case ast.Name(id="dict"):
                    return {}
    raise Unreadable(ast.unparse(node))


def read_text(node: ast.AST | None) -> str:
    """A help text: a string, or pieces of one; what is computed inside an f-string is left out."""
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=parts):
            return " ".join("".join(p.value for p in parts if isinstance(p, ast.Constant)).split())
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{read_text(left)} {read_text(right)}"
    return ""


def read_type(node: ast.AST, known: Mapping[str, Any] = BASIC_TYPES) -> Any:
    """The pydantic type of an annotation. Alternatives that are unreadable are left out; Unreadable if none remains."""
    match node:
        case ast.Constant(value=None):
            return type(None)
        case ast.Name(id="Dict" | "dict") | ast.Subscript(value=ast.Name(id="Dict" | "dict")):
            return Annotated[dict[str, Any], BeforeValidator(as_json), AfterValidator(FrozenDict)]
        case ast.Name(id=name) if name in LISTS:
            return list_of(Any)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in known:
            return known[name]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([left, right], known)
        case ast.Subscript(value=ast.Name(id=outer), slice=inner):
            inside = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if outer == "Literal":
                return Literal[tuple(read_value(choice) for choice in inside)]
            if outer in ("Optional", "Union"):
                return _union(inside + [ast.Constant(None)] * (outer == "Optional"), known)
            if outer in LISTS:
                return list_of(read_type(inside[0], known))
            if outer in ("Tuple", "tuple"):
                kinds = [read_type(item, known) for item in inside if not isinstance(item, ast.Constant)]
                return tuple[kinds[0], ...] if len(kinds) != len(inside) else tuple[tuple(kinds)]
    raise Unreadable(ast.unparse(node))


def list_of(kind: Any) -> Any:
    return Annotated[list[kind], BeforeValidator(as_list)]


def limited(kind: Any, choices: ast.AST | None, known: Mapping[str, Any] = {}) -> Any:
    """`kind` limited to the choices, inside of a list or an Optional too; unlimited where they are only computed."""
    try:
        allowed = Literal[tuple(read_value(choices, known))] if choices else None
    except Unreadable:
        return kind
    if allowed is None:
        return kind
    if "list[" in str(kind):
        allowed = list_of(allowed)
    return allowed | None if "None" in str(kind) else allowed


def _union(alternatives: list[ast.AST], known: Mapping[str, Any]) -> Any:
    kinds = []
    for alternative in alternatives:
        try:
            kinds.append(read_type(alternative, known))
        except Unreadable:
            continue
    if not kinds or kinds == [type(None)]:
        raise Unreadable(", ".join(map(ast.unparse, alternatives)))
    return functools.reduce(operator.or_, kinds)
