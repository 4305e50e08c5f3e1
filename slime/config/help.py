"""--help: the options, grouped; by topic, those of a group, of a library, or whose names hold a word."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Iterable, Iterator

from slime.config import catalogue, unknown
from slime.config.errors import ConfigError, Problem
from slime.config.installed.source import NotInstalled
from slime.config.option import REQUIRED, Option
from slime.config.sections import SECTIONS

USAGE = """\
python train.py [--config FILE]... [--OPTION VALUE]...

Files are YAML: options by name, or grouped under the name of their section.
Later files win over earlier ones, the command line wins over files.

  --config FILE ...   Read options from files.
  --check             Say all that is wrong, or print placement and batch
                      arithmetic; then exit. Touches no device.
  --help [TOPIC]      This; a section; a library (sglang, router, megatron); or
                      the options whose name holds TOPIC.
  --help-all          All options, those of the libraries too.
"""
WIDEST = 100  # columns; longer lines are hard to read
LIBRARIES = {
    "sglang": ("SGLang", "--sglang-<option> for any option of the installed SGLang server"),
    "router": ("sglang-router", "--router-<option> for any option of the installed sglang-router"),
    "megatron": (
        "Megatron-core",
        "any field of the installed Megatron-core's configs by its own name, e.g. --recompute-granularity",
    ),
}


def text(topics: list[str]) -> str:
    """As wide as the terminal, or 80 columns. Raises ConfigError for a topic that there is nothing about."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    if not topics:
        return "\n".join([USAGE, *(line for name in SECTIONS for line in _section(name, width)), *_libraries(width)])
    if topics == ["all"]:
        families = [line for family in LIBRARIES for line in _library(family, width)]
        return "\n".join([USAGE, *(line for name in SECTIONS for line in _section(name, width)), *families])
    pages = {topic: list(_topic(topic, width)) for topic in topics}
    if unknown_topics := [_unknown_topic(topic) for topic, page in pages.items() if not page]:
        raise ConfigError(unknown_topics)
    return "\n".join(line for page in pages.values() for line in page)


def _topic(topic: str, width: int) -> Iterator[str]:
    name = _name(topic)
    if name in SECTIONS:
        yield from _section(name, width)
    elif name in LIBRARIES:
        yield from _library(name, width)
    else:
        found = {
            option.full_name: option for option in [*catalogue.OWN.values(), *_everything()] if name in option.full_name
        }
        yield from _table(found.values(), width)


def _unknown_topic(topic: str) -> Problem:
    near = difflib.get_close_matches(_name(topic), [*SECTIONS, *LIBRARIES]) + unknown.nearest(_name(topic))
    known = f"sections are {', '.join(SECTIONS)}; libraries are {', '.join(LIBRARIES)}"
    return Problem(f"--help {topic}", "no option has this in its name", f"try {' or '.join(near)}" if near else known)


def _name(topic: str) -> str:
    return topic.removeprefix("--").replace("-", "_")


def _section(name: str, width: int) -> Iterator[str]:
    title, _, introduction = SECTIONS[name].__doc__.partition("\n")
    yield f"{title} ({name})"
    if introduction.strip():
        yield from _filled("  " + " ".join(introduction.split()), width)
    yield from _table((catalogue.OWN[option] for option in SECTIONS[name].model_fields), width)
    yield ""


def _library(family: str, width: int) -> Iterator[str]:
    name, how = LIBRARIES[family]
    yield from _filled(f"{name} ({family}): {how}", width)
    try:
        options = {option.full_name: option for option in catalogue.passed_through(family).values()}
        yield from _table(options.values(), width)
    except NotInstalled as error:
        yield from _filled(f"  not listed: {error}", width)
    yield ""


def _libraries(width: int) -> Iterator[str]:
    yield "Passed through, checked against the installed version"
    for family, (_, how) in LIBRARIES.items():
        try:
            count = len({option.name for option in catalogue.passed_through(family).values()})
            yield from _filled(f"  {how}: {count} options, see --help {family}", width)
        except NotInstalled as error:
            yield from _filled(f"  {how}: none here ({error})", width)


def _filled(text: str, width: int) -> list[str]:
    """A paragraph; a first line that is indented indents the others."""
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _everything() -> Iterator[Option]:
    for family in LIBRARIES:
        try:
            yield from catalogue.passed_through(family).values()
        except NotInstalled:
            continue


def _table(options: Iterable[Option], width: int) -> Iterator[str]:
    column = width * 2 // 5
    for option in options:
        left = f"  {usage(option)}"
        lines = textwrap.wrap(f"{option.help} [{default_text(option)}]".strip(), width - column)
        if len(left) >= column:
            yield from _usage_lines(left, width)
            left = ""
        for line in lines:
            yield f"{left:{column}}{line}"
            left = ""


def _usage_lines(usage: str, width: int) -> list[str]:
    """Many choices are broken between two of them; the last character of a line shows that there are more."""
    words = usage.replace("|", "|\0").replace(" ", " \0").split("\0")
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word.rstrip()) > width and lines[-1].strip():
            lines.append(" " * 6)
        lines[-1] += word
    return [line.rstrip() for line in lines]


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
