"""The command line of train.py, from the words to a configuration that a run can start with."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from slime.config import command_line, disk, help, machine, missing_hooks, plan, reach
from slime.config.command_line import CommandLine
from slime.config.completeness import COMPLETENESS
from slime.config.config import Config
from slime.config.errors import ConfigError, Problem
from slime.config.load import resolve


def from_command_line(
    argv: list[str] | None = None,
    look_inside: Iterable[Callable[[Config], list[tuple[str, str]]]] = (),
    commands: Callable[[Config], Iterable[tuple[str, str]]] | None = None,
    context: Callable[[Config], Iterable[str]] = lambda config: (),
) -> Config:
    """The configuration of a run that is about to start: complete, its files present, the run named.

    `look_inside` are asked for (option, what is wrong) of a configuration that is sound otherwise: what only other
    rooms can tell, such as the content of prompt files; `commands` for (what, command line) of what would be started,
    which --check shows where groups of engines were asked for; `context` for what --check says of that of the engines.

    Ends the process instead after --help and --check (status 0), and when anything is wrong: all of it is then on
    stderr (status 2).
    """
    line = command_line.scan(sys.argv[1:] if argv is None else argv)
    if line.help is not None:
        try:
            print(help.text(line.help))
        except ConfigError as error:
            _end(error)
        sys.exit(0)
    resolution = resolve(line)
    config = resolution.config
    closed, out_of_reach = reach.closed(config, resolution.unsound)
    unsound = resolution.unsound | closed
    files = disk.look(config, unsound)
    problems = resolution.problems + out_of_reach + COMPLETENESS.broken(config, unsound)
    problems += files.problems + list(missing_hooks.look(config, unsound))
    notes = resolution.notes + files.notes
    lacking = files.lacking + list(machine.lacking(config, unsound))
    if line.check:
        notes = notes + [f"{lack.where}: {lack.what}; a run could not start here: {lack.fix}." for lack in lacking]
    else:
        problems += lacking
    if not problems:
        problems = [Problem(where, what) for look in look_inside for where, what in look(config)]
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if problems:
        _end(ConfigError(problems))
    if line.check:
        print(plan.describe(config, files.model, context(config)))
        if commands is not None and (config.sglang_config or config.prefill_num_servers):
            for what, command in commands(config):
                print(f"\n{what}:\n    {command}")
        sys.exit(0)
    return _named(config, line)


def _end(error: ConfigError) -> NoReturn:
    print(error, file=sys.stderr)
    sys.exit(2)


def _named(config: Config, line: CommandLine) -> Config:
    """With the run's name and directory: those that were given, else the recipe's or the model's name and the time."""
    recipe = Path(line.files[-1]).stem if line.files else Path(config.hf_checkpoint).name
    told = config.run_name or (Path(os.path.abspath(config.run_dir)).name if config.run_dir else "")
    name = told or _new_name(recipe)
    return config.replace(run_name=name, run_dir=config.run_dir or f"runs/{name}")


def _new_name(recipe: str) -> str:
    """A name that no run under runs/ has: the recipe and the time, with a number where that is taken."""
    stem = f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not Path("runs", name).exists())
