"""From a command line, and the files it names, to a Config.

Invariant: every problem that can be found is found before the first is told. A later stage looks only at what an
earlier one found sound, so that no problem is the mere consequence of another: where a file cannot be read, only what
the command line gives is known.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import yaml

from slime.config import catalogue, command_line, files, roles, unknown
from slime.config.algorithm_rules import ALGORITHM
from slime.config.command_line import CommandLine, Given
from slime.config.config import Config
from slime.config.critic_rules import CRITIC
from slime.config.derive import derive
from slime.config.errors import ConfigError, Problem
from slime.config.known_names import NOT_BUILT_VALUES
from slime.config.megatron_rules import MEGATRON
from slime.config.option import REQUIRED, Option
from slime.config.overlap_rules import OVERLAP
from slime.config.rollout_rules import ROLLOUT
from slime.config.rules import COHERENCE
from slime.config.section import FrozenDict
from slime.config.sections import SECTIONS

logger = logging.getLogger("slime.config")

LENGTH = {"num_rollout", "num_epoch"}


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
    """What was made of a command line. `config` is there even if there are problems: with defaults for the options that
    are wrong or missing, which `unsound` names."""

    config: Config
    unsound: set[str]
    problems: list[Problem]
    notes: list[str]


def resolve(line: CommandLine) -> Resolution:
    problems = list(line.problems)
    given = _merge(line, problems)
    engine_size = next((one.value for one in given if one.name == "rollout_num_gpus_per_engine"), 1)
    given, notes = command_line.translate(given, engine_size)
    unsound = set(line.unsound) if line.whole else catalogue.OWN.keys() - {one.name for one in line.given}
    values = _parse(given, problems, unsound)
    further = {"roles": _roles(values, problems), "custom": _custom(values, problems)}
    config = _assemble(values, unsound, further)
    if config.num_rollout is not None and config.num_epoch is not None:
        notes.append(f"--num-rollout {config.num_rollout} decides; --num-epoch {config.num_epoch} is not used.")
    for rules in (COHERENCE, OVERLAP, ALGORITHM, CRITIC, ROLLOUT, MEGATRON):
        problems += rules.broken(config, unsound)
    return Resolution(config, unsound, problems, notes)


def _merge(line: CommandLine, problems: list[Problem]) -> list[Given]:
    """What the files and then the command line give, each option once; the last one wins, also among the two that say
    how long the run is."""
    latest: dict[str, Given] = {}
    for given in [*(_of_file(file, line, problems) for file in line.files), line.given]:
        says = LENGTH & {one.name for one in given if one.value is not None}
        for name in LENGTH - says if says else ():
            latest.pop(name, None)
        for one in given:
            latest.pop(one.name, None)  # so that the last one comes last, also among several names of one option
            latest[one.name] = one
    on_command_line = {one.name for one in line.given}
    if "run_name" in on_command_line and "run_dir" not in on_command_line:
        latest.pop("run_dir", None)  # a new name for a saved configuration means a new directory, too
    return list(latest.values())


def _of_file(file: str, line: CommandLine, problems: list[Problem]) -> list[Given]:
    try:
        given, wrong = files.read(file)
    except files.Unusable as error:
        line.whole = False
        given, wrong = [], [error.problem]
    problems += wrong
    return given


def _parse(given: list[Given], problems: list[Problem], unsound: set[str]) -> dict[Option, Any]:
    """The typed value of each sound option; the others are added to `unsound`, and what is wrong to `problems`."""
    values = _values(given, problems, unsound)
    for option in catalogue.OWN.values():
        if option.default is REQUIRED and option not in values and option.name not in unsound:
            problems.append(Problem(option.flag, "is required", f"{option.flag} {option.unit}: {option.help}"))
            unsound.add(option.name)
    return values


def _values(given: list[Given], problems: list[Problem], unsound: set[str]) -> dict[Option, Any]:
    """The same of options that nothing is required of."""
    values: dict[Option, Any] = {}
    for one in given:
        option, negated = catalogue.find(one.name) or (None, False)
        if option is None:
            problems.append(Problem(one.where, *unknown.explain(one.name)))
        elif negated:
            fix = f"write `{option.full_name.replace('_', '-')}: false`"
            problems.append(Problem(one.where, "is a negation", fix))
        else:
            try:
                values[option] = option.parse(one.value)
            except ValueError as error:
                problems.append(_wrong_value(one, option, str(error)))
                unsound.add(option.full_name)
    return values


def _wrong_value(one: Given, option: Option, what: str) -> Problem:
    if not_built := NOT_BUILT_VALUES.get(option.full_name, {}).get(str(one.value)):
        why, instead = not_built
        return Problem(one.where, f"{one.value} {why}", instead)
    return Problem(one.where, what, f"{option.flag} {option.unit}: {option.help}")


def _roles(values: dict[Option, Any], problems: list[Problem]) -> FrozenDict:
    """What --megatron-config-path says of each role: options of ours and of Megatron's, by name."""
    file = values.get(catalogue.OWN["megatron_config_path"])
    if file is None:
        return FrozenDict()
    try:
        given, wrong = roles.read(file)
    except files.Unusable as error:
        problems.append(error.problem)
        return FrozenDict()
    problems += wrong
    parsed = {}
    for role, of_role in given.items():
        parsed[role] = _values(of_role, problems, set())
        for option in [option for option in parsed[role] if not roles.may_differ(option)]:
            where = f"{roles.OPTION} {file}: {role}: {option.name}"
            problems.append(Problem(where, "is the same for policy and critic", f"give it as {option.flag}"))
    return FrozenDict(
        {role: FrozenDict({option.name: value for option, value in of.items()}) for role, of in parsed.items()}
    )


def _custom(values: dict[Option, Any], problems: list[Problem]) -> FrozenDict:
    """The keys of --custom-config-path, which users' functions find beside the options."""
    file = values.get(catalogue.OWN["custom_config_path"])
    if file is None:
        return FrozenDict()
    try:
        node = files.compose(file, "--custom-config-path")
        found = yaml.SafeLoader("").construct_document(node)
    except (files.Unusable, yaml.YAMLError) as error:
        where = f"--custom-config-path {file}"
        problems.append(error.problem if isinstance(error, files.Unusable) else Problem(where, str(error)))
        return FrozenDict()
    for key in found:
        if not (isinstance(key, str) and key.isidentifier()):
            problems.append(Problem(f"--custom-config-path {file}: {key}", "is not the name of an attribute"))
        elif key in Config.model_fields or hasattr(Config, key) or catalogue.find(key):
            problems.append(Problem(f"--custom-config-path {file}: {key}", "is an option", "choose another name"))
    return FrozenDict(found)


def _assemble(values: dict[Option, Any], unsound: set[str], further: dict[str, FrozenDict]) -> Config:
    own = derive({name: values.get(option, option.default) for name, option in catalogue.OWN.items()}, unsound)
    sections = {title: cls.model_construct(**{n: own[n] for n in cls.model_fields}) for title, cls in SECTIONS.items()}
    passed = {
        family: FrozenDict({option.name: value for option, value in values.items() if option.family == family})
        for family in catalogue.READERS
    }
    return Config.model_construct(**sections, **passed, **further)
