"""Whether the system lets this user look at the files and directories that options name, be they there or not.

Others can then ask pathlib, which raises where a directory above may not be searched, or a name is too long.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from slime.config.config import Config
from slime.config.errors import Problem

READ = (
    "hf_checkpoint", "ref_load", "opd_teacher_load", "load", "critic_load", "rm_judge_prompt", "eval_config",
    "load_debug_rollout_data",
)  # fmt: skip


def closed(config: Config, unsound: set[str]) -> tuple[set[str], list[Problem]]:
    """The options whose paths can't be looked at, and why; those together that fail alike, for one may follow from
    another (--critic-load from --load)."""
    why: dict[str, dict[str, None]] = {}
    options: dict[str, dict[str, str]] = {}
    for option, path in _paths(config):
        if option not in unsound and (reason := _reason(path)):
            why.setdefault(reason, {})[path] = None
            options.setdefault(reason, {})[option] = "--" + option.replace("_", "-")
    problems = [
        Problem(
            ", ".join(options[reason].values()),
            f"{' and '.join(paths)} cannot be looked at: {reason}",
            "name another path, or have its directories opened to you",
        )
        for reason, paths in why.items()
    ]
    return {option for flags in options.values() for option in flags}, problems


def _paths(config: Config) -> Iterator[tuple[str, str]]:
    for option in READ:
        if (path := getattr(config, option)) is not None:
            yield option, path
    for option, paths in {"prompt_data": config.prompt_data, "eval_prompt_data": config.eval_prompt_data[1::2]}.items():
        yield from ((option, path.partition("@[")[0]) for path in paths)


def _reason(path: str) -> str:
    """Empty where nothing is in the way."""
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            os.stat(os.path.join(path, "config.json"))  # one may see a directory, and not what is in it
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass  # nothing is there, which others say, and what could be
    except OSError as error:
        return error.strerror or str(error)
    return ""
