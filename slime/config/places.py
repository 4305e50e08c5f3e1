"""The directories that a run is going to write to: whether it could, and whether it would write over the checkpoints of
another run, asked before anything is generated or trained.

Invariant: nothing is left behind. What could only be told by writing is asked of a file without a name.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from slime.config import checkpoint_dir
from slime.config.checkpoint_files import of_another_model
from slime.config.config import Config
from slime.config.errors import Problem

DIRECTORIES = ("save", "critic_save", "save_hf", "run_dir")
FILES = ("save_debug_rollout_data", "save_debug_train_data")


def look(config: Config, unsound: set[str]) -> Iterator[Problem]:
    """Options whose directories, or the nearest above them that are there, cannot be written to; those together that
    fail alike, for one may follow from another (--critic-save from --save)."""
    wrong: dict[str, list[str]] = {}
    for option in (*DIRECTORIES, *FILES):
        path = getattr(config, option)
        if path is not None and option not in unsound:
            directory = Path(path).parent if option in FILES else Path(path)
            if lack := _lack(_constant(directory)):
                wrong.setdefault(lack, []).append(option)
    for lack, options in wrong.items():
        flags = ", ".join("--" + option.replace("_", "-") for option in options)
        paths = " and ".join(getattr(config, option) for option in options)
        fix = "name a directory that can be made and written to"
        yield Problem(flags, f"{paths} cannot be written: {lack}", fix)
    can_be_written = "save_hf" not in chain.from_iterable(wrong.values())
    if config.save_hf is not None and can_be_written and not unsound & {"save_hf", "hf_checkpoint"}:
        yield from _not_to_be_replaced(config)
    if not (config.debug_rollout_only or unsound & {"save", "critic_save", "load", "critic_load"}):
        yield from _of_another_run(config)


def _not_to_be_replaced(config: Config) -> Iterator[Problem]:
    """Exports, of whatever rollout, over a model that this run reads, or over what is no earlier export.
    slime.models.save refuses some of that, but only when all is trained."""
    fix = "name a new directory, or one with an earlier export"
    export = re.escape(str(Path(config.save_hf).resolve())).replace(r"\{rollout_id\}", r"\d+")
    read = (config.hf_checkpoint, config.ref_load, config.critic_load, config.opd_teacher_load)
    for model in dict.fromkeys(str(path) for path in read if path is not None):
        if re.fullmatch(export, str(Path(model).resolve())):
            yield Problem("--save-hf", f"{config.save_hf} is where a model of this run comes from, {model}", fix)
            return
    directory = Path(config.save_hf)
    if directory.is_dir() and not (directory / "config.json").exists() and any(directory.iterdir()):
        yield Problem("--save-hf", f"{directory} holds files and no model (config.json), and would be replaced", fix)
    elif other := of_another_model(directory, config.hf_checkpoint):
        yield Problem("--save-hf", f"{directory} holds another model, which would be replaced: {other}", fix)


def _of_another_run(config: Config) -> Iterator[Problem]:
    """Directories of checkpoints that this run does not go on from, though it would save over them."""
    goes_on = _same(config.save, config.load)
    for saves, loads in (("save", "load"), ("critic_save", "critic_load")):
        directory = getattr(config, saves)
        if directory is None or goes_on or _same(directory, getattr(config, loads)):
            continue
        if there := checkpoint_dir.rollouts(Path(directory)):
            what = f"{directory} has checkpoints of another run, up to {checkpoint_dir.name_of(there[-1])}"
            fix = f"name a new directory, or go on from them with --{loads.replace('_', '-')} {directory}"
            yield Problem(f"--{saves.replace('_', '-')}", f"{what}, which this one would write over", fix)


def _same(directory: str | None, other: str | None) -> bool:
    return None not in (directory, other) and Path(directory).resolve() == Path(other).resolve()


def _constant(path: Path) -> Path:
    """The part of a path without placeholders, such as {rollout_id}."""
    parts = path.parts
    first = next((number for number, part in enumerate(parts) if "{" in part), len(parts))
    return Path(*parts[:first])


def _lack(directory: Path) -> str | None:
    """Why a directory could not be made or written to; None where it could."""
    there = directory
    try:
        there = next((path for path in (directory, *directory.parents) if _exists(path)), Path())
        if not there.is_dir():
            return f"{there} is no directory"
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        return f"{there}: {error.strerror or error}"
    return None


def _exists(path: Path) -> bool:
    """Whether anything is there, be it a link to nothing."""
    return path.is_symlink() or path.exists()
