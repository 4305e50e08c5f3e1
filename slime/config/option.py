"""Option: what command line, files, help and messages need to know about an option, ours or an installed library's.

Invariant: `parse` is the only way from what a user wrote to a value, in YAML or on a command line.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from slime.config.section import Section, Trait, Unit

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "required"})()
_CONFIG = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=True)
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "dict": "a JSON object",
}


@dataclass(frozen=True, eq=False)
class Option:
    """`name` has underscores and no prefix; `family` is "" for our own options, else sglang, router or megatron."""

    name: str
    type: Any
    default: Any
    help: str
    family: str = ""
    derived: str = ""
    secret: bool = False
    shown_default: str | None = None  # where the default is an expression of the library's source
    json: bool = False  # the library's own command line wants a single JSON text

    @classmethod
    def of_field(cls, name: str, field: FieldInfo) -> Option:
        trait: Trait = field.json_schema_extra["trait"]
        kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        default = REQUIRED if field.is_required() else field.default
        return cls(name, kind, default, field.description, derived=trait.derived, secret=trait.secret)

    @property
    def flag(self) -> str:
        """rollout_batch_size -> --rollout-batch-size, SGLang's dtype -> --sglang-dtype"""
        return "--" + self.full_name.replace("_", "-")

    @property
    def full_name(self) -> str:
        return f"{self.family}_{self.name}" if self.family in ("sglang", "router") else self.name

    @cached_property
    def _members(self) -> list[Any]:
        return [kind for kind in _members(self.type) if kind is not type(None)]

    @property
    def optional(self) -> bool:
        return type(None) in _members(self.type)

    @property
    def is_switch(self) -> bool:
        return self._members == [bool]

    @property
    def is_list(self) -> bool:
        return not self.json and any(typing.get_origin(kind) in (tuple, list) for kind in self._members)

    @property
    def takes_single_value(self) -> bool:
        """Whether one word may stand for itself, even if several would make a list (`int | list[int]`)."""
        return not self.is_list or any(typing.get_origin(kind) not in (tuple, list) for kind in self._members)

    @property
    def choices(self) -> list[str]:
        return [
            str(choice)
            for kind in self._members
            if typing.get_origin(kind) is Literal
            for choice in typing.get_args(kind)
        ]

    @property
    def unit(self) -> str:
        """What stands for the value in --help."""
        if self.choices:
            return "|".join(self.choices)
        units = [unit.name for unit in _metadata(self.type) if isinstance(unit, Unit)]
        names = {int: "N", float: "X", str: "TEXT", dict: "JSON"}
        return units[0] if units else next((names[kind] for kind in self._members if kind in names), "VALUE")

    def parse(self, value: Any) -> Any:
        """The typed value. Raises ValueError with what was expected, to be read after the option's name."""
        if isinstance(value, bool) and not self.is_switch:
            raise ValueError("needs a value")
        try:
            return TypeAdapter(self.type, config=_CONFIG).validate_python(value)
        except ValidationError as error:
            raise ValueError(self._in_words(error, value)) from None

    def _in_words(self, error: ValidationError, value: Any) -> str:
        detail = error.errors(include_url=False)[0]
        kind, context = detail["type"], detail.get("ctx", {})
        shown = "" if self.secret or self.unit == "JSON" else f"{detail['input']!r} "  # JSON may hold secrets, too
        if self.choices:
            return f"{shown}is none of {', '.join(self.choices)}"
        match kind:
            case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
                sign = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}[
                    kind
                ]
                return f"{shown}is out of range: must be {sign} {next(iter(context.values()))}"
            case "value_error":
                return f"{shown}is {context['error']}"
            case "finite_number":
                return f"{shown}is not a finite number"
            case "string_too_short":
                return "is empty"
        for prefix, words in _EXPECTED.items():
            if kind.startswith(prefix):
                return f"{shown}is not {words}"
        return f"{shown}does not fit: {detail['msg']}"


def _members(kind: Any) -> list[Any]:
    """The alternatives of a type: Annotated[int, ...] | None -> [int, NoneType]."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _members(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return [member for alternative in typing.get_args(kind) for member in _members(alternative)]
    return [kind]


def _metadata(kind: Any) -> Iterator[Any]:
    for argument in typing.get_args(kind):
        yield argument
        if typing.get_origin(kind) is not Literal:
            yield from _metadata(argument)


def options_of(section: type[Section]) -> dict[str, Option]:
    return {name: Option.of_field(name, field) for name, field in section.model_fields.items()}
