"""All options there are: ours, and those of the installed SGLang, router and Megatron, found by the name a user writes.

Invariants: our own options win over an installed library's of the same name; a name leads to one option or to none
(unknown.py then explains why).
"""

from __future__ import annotations

import functools
from types import ModuleType

from slime.config.installed import megatron, router, sglang
from slime.config.installed.source import NotInstalled
from slime.config.option import Option, options_of
from slime.config.sections import SECTIONS

OWN: dict[str, Option] = {name: option for section in SECTIONS.values() for name, option in options_of(section).items()}
SECTION_OF: dict[str, str] = {name: title for title, section in SECTIONS.items() for name in section.model_fields}
READERS: dict[str, ModuleType] = {"sglang": sglang, "router": router, "megatron": megatron}
COMMANDS = ("config", "check", "help", "help_all")


@functools.cache
def passed_through(family: str) -> dict[str, Option]:
    """Name -> option of an installed library that can be set here. Raises NotInstalled."""
    hidden = {*READERS[family].RESERVED, *(OWN if family == "megatron" else ())}  # Megatron's names have no prefix
    options = READERS[family].read()
    return {name: option for name, option in options.items() if not {name, option.name} & hidden}


def family_of(name: str) -> str:
    """The library that a name which is not ours is looked up in."""
    return next((family for family in ("sglang", "router") if name.startswith(family + "_")), "megatron")


def find(name: str) -> tuple[Option, bool] | None:
    """The option of a full name with underscores, and whether the name negates it (no_colocate). None: unknown."""
    if name in OWN:
        return OWN[name], False
    family = family_of(name)
    try:
        options = passed_through(family)
    except NotInstalled:
        options = {}
    if option := options.get(name.removeprefix(f"{family}_") if family != "megatron" else name):
        return option, option.default is True and option.name != name and name.startswith(("no_", "disable_"))
    if name.startswith("no_") and (positive := find(name.removeprefix("no_"))) and positive[0].is_switch:
        return positive[0], not positive[1]
    return None
