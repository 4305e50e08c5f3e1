"""What an option is: a typed field of a section, with a default, a help text and, where it has one, a unit.

Invariants: sections are immutable and hold no unknown names; a value from YAML and a string from the command line go
through the same pydantic field, so both mean the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_SECRET = re.compile(r"(^|_)(api_?keys?|key|password|secret|(?<!first_)(?<!per_)token|(db|redis)_url)$", re.IGNORECASE)


def is_secret(key: str) -> bool:
    """Whether a key of a library's options or of an environment names what must not be shown: api_key, HF_TOKEN."""
    return bool(_SECRET.search(key))


class FrozenDict(dict):
    """A dict that cannot be changed, so that a configuration stays what was checked. Its repr hides secrets."""

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError("the configuration is immutable: copy the dict first, with dict(...)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __repr__(self) -> str:
        return repr({key: "(secret)" if is_secret(str(key)) else value for key, value in self.items()})

    def __reduce__(self):
        return FrozenDict, (dict(self),)


class Section(BaseModel):
    """A group of options. The first line of the docstring is its title in --help; the rest introduces it."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)


@dataclass(frozen=True)
class Trait:
    """What help, files and messages need to know about an option beyond its type."""

    derived: str = ""  # how an unset value is filled in, in words
    secret: bool = False  # never printed, never saved


def option(default: Any, help: str, *, derived: str = "", secret: bool = False) -> Any:
    """A field with its default and help. `derived` says in words what an unset option becomes."""
    return Field(default, description=help, repr=not secret, json_schema_extra={"trait": Trait(derived, secret)})


def required(help: str) -> Any:
    return Field(..., description=help, json_schema_extra={"trait": Trait()})


@dataclass(frozen=True)
class Unit:
    """What a value counts, as shown in --help: `--distributed-timeout-minutes MINUTES`."""

    name: str


def as_size(value: Any) -> Any:
    """'512MiB', '2 GB' or plain bytes -> bytes."""
    if not isinstance(value, str) or not (
        match := re.fullmatch(r"\s*([\d.]+)\s*([KMGT])(i?)B?\s*", value, re.IGNORECASE)
    ):
        return value
    number, letter, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** ("KMGT".index(letter.upper()) + 1))


def as_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from None


def _hook(value: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value):
        raise ValueError("not of the form module.attribute, e.g. my_package.my_module.my_function")
    return value


def _directory_name(value: str) -> str:
    if value in (".", "..") or re.search(r"[/\0]", value):
        raise ValueError("not the name of one directory; --run-dir is for a path")
    return value


def _top_k(value: int) -> int:
    if value == 0:
        raise ValueError("neither a number of tokens, nor -1 for all of them")
    return value


def as_list(value: Any) -> Any:
    """A single YAML value stands for a list of one."""
    return (value,) if isinstance(value, (str, int, float)) else value


Count = Annotated[int, Field(ge=1), Unit("N")]
Index = Annotated[int, Field(ge=0), Unit("N")]
Tokens = Annotated[int, Field(ge=1), Unit("TOKENS")]
Seconds = Annotated[float, Field(ge=0), Unit("SECONDS")]
Deadline = Annotated[float, Field(gt=0), Unit("SECONDS")]
Minutes = Annotated[float, Field(gt=0), Unit("MINUTES")]
Bytes = Annotated[int, Field(ge=1), BeforeValidator(as_size), Unit("BYTES")]
Port = Annotated[int, Field(ge=1, le=65535), Unit("PORT")]
Fraction = Annotated[float, Field(ge=0, le=1), Unit("0..1")]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False), Unit("X")]
NonNegative = Annotated[float, Field(ge=0), Unit("X")]
Positive = Annotated[float, Field(gt=0), Unit("X")]
Path = Annotated[str, Field(min_length=1), Unit("PATH")]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1), Unit("N")]  # numpy takes no greater ones
TopK = Annotated[int, Field(ge=-1), AfterValidator(_top_k), Unit("N")]
DirectoryName = Annotated[str, Field(min_length=1), AfterValidator(_directory_name), Unit("NAME")]
Hook = Annotated[str, AfterValidator(_hook), Unit("MODULE.ATTR")]
Json = Annotated[dict[str, Any], BeforeValidator(as_json), AfterValidator(FrozenDict), Unit("JSON")]
Strings = Annotated[tuple[str, ...], BeforeValidator(as_list), Unit("TEXT")]
Paths = Annotated[tuple[str, ...], BeforeValidator(as_list), Unit("PATH")]
Positives = Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(as_list), Unit("X")]
Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(as_list), Unit("N")]
Integers = Annotated[tuple[int, ...], BeforeValidator(as_list), Unit("N")]
