"""Splitting a command line into options and their values.

argparse stops at the first error, and takes `-1e-6` for an option; here all errors of a command line are to be told at
once, and types are pydantic's business. So this is argparse's grammar (`--name value`, `--name=value`, `--switch`,
`--no-switch`, `--list a b c`, no abbreviations, the last one wins) and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slime.config import catalogue
from slime.config.errors import Problem
from slime.config.known_names import NO_EFFECT, NOT_BUILT, RENAMED
from slime.config.option import Option


@dataclass(frozen=True)
class Given:
    """One option as it was written: in a file or on the command line. `name` is full and has underscores."""

    name: str
    value: Any
    where: str


@dataclass
class CommandLine:
    given: list[Given] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    check: bool = False
    help: list[str] | None = None  # the topics that were asked for; empty: the overview
    problems: list[Problem] = field(default_factory=list)
    unsound: set[str] = field(default_factory=set)  # the options that problems are about
    whole: bool = True  # false: a file was meant that cannot be read, so what is missing may be in it


def scan(argv: list[str]) -> CommandLine:
    """What a command line says; what cannot be split is among its `problems`."""
    line = CommandLine()
    words = list(argv)
    while words:
        word = "--help" if words[0] == "-h" else words[0]
        del words[0]
        if not word.startswith("--") or word == "--":
            is_file = word.endswith((".yaml", ".yml"))
            fix = f"--config {word}" if is_file else "options start with --; quote values that hold spaces"
            line.problems.append(Problem(word, "is no option and belongs to none", fix))
            line.whole &= not is_file
            continue
        flag, equals, attached = word.partition("=")
        values = [attached] if equals else []
        while not equals and words and not words[0].startswith("--"):
            values.append(words.pop(0))
        match flag.removeprefix("--").replace("-", "_"):
            case "config":
                line.files += values
                if not values:
                    line.whole = False
                    line.problems.append(Problem(flag, "needs a file", "--config configs/tiny-grpo.yaml"))
            case "check":
                line.check = True
                words[:0] = values  # which are not its own
                if equals:
                    line.problems.append(Problem(flag, "takes no value", "leave it out to start the run"))
            case "help":
                line.help = values
            case "help_all":
                line.help = ["all"]
            case name:
                _take(line, flag, name, values)
    return line


def _take(line: CommandLine, flag: str, name: str, values: list[str]) -> None:
    """Adds the option to the line with as many values as it takes, or says that it was given others."""
    option, negated = catalogue.find(name) or (None, False)
    if option is None:  # unknown, or an older name: its values are whatever follows
        taken: Any = True if not values else values[0] if len(values) == 1 else values
        line.given.append(Given(name, taken, flag))
    elif option.is_list and not (len(values) == 1 and option.takes_single_value):
        line.given.append(Given(option.full_name, values, flag))
    elif option.is_switch and not values:
        line.given.append(Given(option.full_name, not negated, flag))
    elif len(values) == 1 and not negated:
        line.given.append(Given(option.full_name, values[0], flag))
    else:
        line.unsound.add(option.full_name)
        line.problems.append(Problem(flag, *_wrong_number(option, negated, flag, len(values))))


def _wrong_number(option: Option, negated: bool, flag: str, count: int) -> tuple[str, str]:
    if negated:
        return "takes no value", f"write {flag} alone"
    if not count:
        return f"needs a value: {flag} {option.unit}", option.help
    return f"takes one value, but {count} words follow", "quote a value that holds spaces"


def translate(given: list[Given], engine_size: Any) -> tuple[list[Given], list[str]]:
    """Older names to today's, and those without effect taken out; each is said once in the notes.

    `engine_size` is the value of --rollout-num-gpus-per-engine, which some older switches stood for.
    """
    kept, notes = [], []
    for one in given:
        key = one.name.replace("_", "-")
        if _is_off(key, one.value):
            notes.append(f"{one.where} asks for what is the case anyway.")
        elif key in NO_EFFECT:
            notes.append(f"{one.where} has no effect: {NO_EFFECT[key]}.")
        elif key in RENAMED:
            today, value = RENAMED[key]
            if value is not None and one.value in (False, "false"):
                continue  # a switch that is off asks for nothing
            value = one.value if value is None else engine_size if value == "engine-size" else value
            notes.append(f"{one.where} is now --{today}{'' if value is True else f' {_shown(value)}'}; taken as such.")
            kept.append(Given(today.replace("-", "_"), value, one.where))
        else:
            kept.append(one)
    return kept, list(dict.fromkeys(notes))


def _is_off(key: str, value: Any) -> bool:
    """Whether this switches off what there is not."""
    off = value in (False, "false")
    return (key in NOT_BUILT and off) or (key.removeprefix("no-") in NOT_BUILT and key.startswith("no-") and not off)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
