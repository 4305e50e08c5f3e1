"""From a command line, and the files it names, to a Config.

Invariant: every problem that can be found is found before the first is told. A later stage looks only at what an
earlier one found sound, so that no problem is the mere consequence of another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slime.config import catalogue, command_line, files
from slime.config.command_line import CommandLine, Given
from slime.config.config import Config
from slime.config.derive import derive
from slime.config.errors import ConfigError, Problem
from slime.config.known_names import NOT_YET_VALUES
from slime.config.option import REQUIRED
from slime.config.rules import COHERENCE
from slime.config.section import FrozenDict
from slime.config.sections import SECTIONS

logger = logging.getLogger("slime.config")


def load(argv: list[str]) -> Config:
    """The configuration that a command line and its --config files describe; raises ConfigError with all that is wrong.

    Names, types and the rules between options are checked; the files that options name are not looked at (see disk.py).
    """
    line = command_line.scan(argv)
    resolution = resolve(line)
    for note in resolution.notes:
        logger.warning(note)
    if resolution.problems:
        raise ConfigError(resolution.problems)
    return resolution.config


@dataclass
class Resolution:
    """`config` is there even if there are problems, with defaults in place of what is wrong or missing: the options
    named in `unsound`."""

    config: Config
    unsound: set[str]
    problems: list[Problem]
    notes: list[str]


def resolve(line: CommandLine) -> Resolution:
    problems = list(line.problems)
    given: dict[str, Given] = {}
    for source in [*map(files.read, line.files), (line.given, [])]:
        problems += source[1]
        for one in source[0]:
            given.pop(one.name, None)  # the last one wins, and goes last, also among several names of one option
            given[one.name] = one
    name, directory = given.get("run_name"), given.get("run_dir")
    if name and name.on_command_line and directory and not directory.on_command_line:
        del given["run_dir"]  # a new name for a saved configuration means a new directory, too
    engine_size = given.get("rollout_num_gpus_per_engine")
    current, notes = command_line.translate(list(given.values()), engine_size.value if engine_size else 1)

    values, unsound = _parse(current, problems)
    config = _assemble(values, unsound)
    problems += COHERENCE.broken(config, unsound)
    return Resolution(config, unsound, problems, notes)


def _parse(given: Iterable[Given], problems: list[Problem]) -> tuple[dict[tuple[str, str], Any], set[str]]:
    """(family, name) -> typed value of each sound option; the others are added to `problems` and named in the set."""
    values: dict[tuple[str, str], Any] = {}
    unsound: set[str] = set()
    for one in given:
        found = catalogue.find(one.name)
        if found is None:
            problems.append(Problem(one.where, *catalogue.explain_unknown(one.name)))
            continue
        option, negated = found
        if negated:
            problems.append(Problem(one.where, "is a negation", f"write `{option.full_name.replace('_', '-')}: false`"))
            continue
        try:
            values[option.family, option.name] = option.parse(one.value)
        except ValueError as error:
            what, fix = str(error), f"{option.flag} {option.unit}: {option.help}"
            if str(one.value) in NOT_YET_VALUES.get(option.name, ()):
                what = f"{one.value!r} is known to scripts in this field, not supported by this version yet"
                fix = f"choose among {', '.join(option.choices)}"
            problems.append(Problem(one.where, what, fix))
            unsound.add(option.name)
    for option in catalogue.OWN.values():
        if option.default is REQUIRED and ("", option.name) not in values and option.name not in unsound:
            problems.append(Problem(option.flag, "is required", f"{option.flag} {option.unit}: {option.help}"))
            unsound.add(option.name)
    return values, unsound


def _assemble(values: dict[tuple[str, str], Any], unsound: set[str]) -> Config:
    own = {name: o.default for name, o in catalogue.OWN.items()} | {
        name: v for (family, name), v in values.items() if not family
    }
    own = derive(own, unsound)
    sections = {title: cls.model_construct(**{n: own[n] for n in cls.model_fields}) for title, cls in SECTIONS.items()}
    passed = {
        family: FrozenDict({name: value for (owner, name), value in values.items() if owner == family})
        for family in catalogue.READERS
    }
    return Config.model_construct(**sections, **passed)
