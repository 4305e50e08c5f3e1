"""--help: the options, grouped; by topic, those of a group, of a library, or whose names hold a word."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator

from slime.config import catalogue
from slime.config.installed.source import NotInstalled
from slime.config.option import REQUIRED, Option
from slime.config.sections import SECTIONS

USAGE = """\
python train.py [--config FILE]... [--OPTION VALUE]...

Files are YAML: options by name, or grouped under the name of their section. Later files win over earlier ones, the
command line wins over files.

  --config FILE ...   Read options from files.
  --check             Say all that is wrong, or print placement and batch arithmetic; then exit. Touches no device.
  --help [TOPIC]      This; a section; a library (sglang, router, megatron); or the options whose name holds TOPIC.
  --help-all          All options, those of the libraries too.
"""
LIBRARIES = {
    "sglang": ("SGLang", "--sglang-<option> for any option of the installed SGLang server"),
    "router": ("sglang-router", "--router-<option> for any option of the installed sglang-router"),
    "megatron": (
        "Megatron-core",
        "any field of the installed Megatron-core's configs by its own name, e.g. --recompute-granularity",
    ),
}


def text(topics: list[str]) -> str:
    width = min(shutil.get_terminal_size((110, 24)).columns, 120)
    if not topics:
        return "\n".join([USAGE, *(line for name in SECTIONS for line in _section(name, width)), *_libraries()])
    if topics == ["all"]:
        families = [line for family in LIBRARIES for line in _library(family, width)]
        return "\n".join([USAGE, *(line for name in SECTIONS for line in _section(name, width)), *families])
    return "\n".join(line for topic in topics for line in _topic(topic, width))


def _topic(topic: str, width: int) -> Iterator[str]:
    name = topic.removeprefix("--").replace("-", "_")
    if name in SECTIONS:
        yield from _section(name, width)
    elif name in LIBRARIES:
        yield from _library(name, width)
    else:
        found = {
            option.full_name: option for option in [*catalogue.OWN.values(), *_everything()] if name in option.full_name
        }
        yield from _table(found.values(), width)
        if not found:
            yield f"No option has {topic!r} in its name. Sections are {', '.join(SECTIONS)}, {', '.join(LIBRARIES)}."


def _section(name: str, width: int) -> Iterator[str]:
    title, _, introduction = SECTIONS[name].__doc__.partition("\n")
    yield f"{title} ({name})"
    if introduction.strip():
        yield textwrap.fill(" ".join(introduction.split()), width, initial_indent="  ", subsequent_indent="  ")
    yield from _table((catalogue.OWN[option] for option in SECTIONS[name].model_fields), width)
    yield ""


def _library(family: str, width: int) -> Iterator[str]:
    name, how = LIBRARIES[family]
    yield f"{name} ({family}): {how}"
    try:
        options = {option.full_name: option for option in catalogue.passed_through(family).values()}
        yield from _table(options.values(), width)
    except NotInstalled as error:
        yield f"  not listed: {error}"
    yield ""


def _libraries() -> Iterator[str]:
    yield "Passed through, checked against the installed version"
    for family, (_, how) in LIBRARIES.items():
        try:
            count = len({option.name for option in catalogue.passed_through(family).values()})
            yield f"  {how}: {count} options, see --help {family}"
        except NotInstalled as error:
            yield f"  {how}: none here ({error})"


def _everything() -> Iterator[Option]:
    for family in LIBRARIES:
        try:
            yield from catalogue.passed_through(family).values()
        except NotInstalled:
            continue


def _table(options: Iterable[Option], width: int) -> Iterator[str]:
    column = 40
    for option in options:
        left = f"  {usage(option)}"
        lines = textwrap.wrap(f"{option.help} [{default_text(option)}]".strip(), width - column)
        if len(left) >= column:
            yield from textwrap.wrap(
                left, width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
            )
            left = ""
        for line in lines:
            yield f"{left:{column}}{line}"
            left = ""


def usage(option: Option) -> str:
    """--lr X · --colocate · --no-bf16 · --offload-rollout | --no-offload-rollout · --rollout-stop TEXT ..."""
    negative = "--no-" + option.flag.removeprefix("--")
    if option.is_switch:
        return (
            negative
            if option.default is True
            else option.flag
            if option.default is False
            else f"{option.flag} | {negative}"
        )
    return f"{option.flag} {option.unit}" + (" ..." if option.is_list else "")


def default_text(option: Option) -> str:
    if option.default is REQUIRED:
        return "required"
    if option.derived:
        return f"default: {option.derived}"
    if option.shown_default is not None:
        return f"default: {option.shown_default}"
    if option.default is None or option.default in ((), [], {}):
        return "unset"
    if option.is_switch:
        return "on" if option.default else "off"
    if option.unit == "BYTES":
        return f"default: {option.default // 1024**2} MiB"
    words = option.default if isinstance(option.default, (list, tuple)) else [option.default]
    return f"default: {' '.join(map(str, words))}"
