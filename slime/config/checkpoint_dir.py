"""Where the checkpoints of a run lie, laid out as users of Megatron know it. Names only: what is in the files of
one, checkpoint_files.py reads and slime.training writes.

    DIR/latest_checkpointed_iteration.txt   "3", or "release" for weights alone
    DIR/iter_0000003/                       Megatron's torch_dist format, and state.json: trained up to rollout 3
    DIR/rollout/3.json                      the position in the data, and what was put back, after generating rollout 3
    DIR/rollout/3.buffer.json               what was handed out then, and not in a batch yet

Invariant: a checkpoint's directory has its name only once it is whole. So whatever has the name can be loaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slime.config.config import Config

MARKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
DATA = "rollout"
STATE = "state.json"


class NoCheckpoint(ValueError):
    """What --load or --ckpt-step names is not there; the message says what is."""


def name_of(rollout_id: int) -> str:
    return f"iter_{rollout_id:07d}"


def rollout_of(checkpoint: Path) -> int | None:
    """That which it was saved after, by its name; None where this is another."""
    match = re.fullmatch(r"iter_(\d{7,})", checkpoint.name)
    return int(match[1]) if match else None


def rollouts(directory: Path) -> list[int]:
    """Of the checkpoints that are there, in rising order; none where the directory can't be looked at."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(number for name in names if (number := rollout_of(directory / name)) is not None)


def find(directory: str | Path, step: int | None = None) -> Path | None:
    """The checkpoint of rollout `step`, else that which the marker names, else the newest. None where there is none at
    all.

    Raises NoCheckpoint when there is no checkpoint of `step`.
    """
    directory = Path(directory)
    there = rollouts(directory)
    if step is not None:
        if step not in there:
            raise NoCheckpoint(f"{directory} has no checkpoint {name_of(step)}; it has {_listed(there)}")
        return directory / name_of(step)
    named, _ = _marked(directory)
    if named is not None:
        return named
    return directory / name_of(there[-1]) if there else None


def wrong_marker(directory: str | Path) -> str:
    """What is wrong with a marker that leads to no checkpoint; nothing where it does, or there is none."""
    _, reason = _marked(Path(directory))
    return f"{Path(directory) / MARKER} {reason}" if reason else ""


def _marked(directory: Path) -> tuple[Path | None, str]:
    """The checkpoint that the marker names, or why it names none; neither where there is no marker."""
    marker = directory / MARKER
    if not marker.exists():
        return None, ""
    try:
        latest = marker.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        return None, f"can't be read ({error})"
    if not latest:
        return None, "is empty"
    if latest != RELEASE and not re.fullmatch(r"[0-9]+", latest):
        return None, f"says {latest[:40]!r}, which is no number of a rollout"
    named = directory / (RELEASE if latest == RELEASE else name_of(int(latest)))
    return (named, "") if named.is_dir() else (None, f"names {named.name}, which is not there")


def find_with(directory: str | Path, other: str | Path, step: int | None = None) -> Path | None:
    """The same where `other` must have a checkpoint of that rollout, too: policy and critic go on from one moment."""
    latest = [find(path) for path in (directory, other)]
    if step is None and all(path is not None and rollout_of(path) is not None for path in latest):
        common = set(rollouts(Path(directory))) & set(rollouts(Path(other)))
        last = min(rollout_of(path) for path in latest)
        step = max((number for number in common if number <= last), default=None)
    return None if step is None else find(directory, step)


def to_load(config: Config) -> Path | None:
    """The checkpoint that a run starts from; None to start from --hf-checkpoint.

    Raises NoCheckpoint when --load has none, or none that the critic has as well, and nothing says that this is a fresh
    start.
    """
    if config.load is None:
        return None
    directory = Path(config.load)
    partner = of_critic(config) if config.has_critic and not config.finetune else None
    if partner is not None:
        found = find_with(directory, partner, config.ckpt_step)
        if found is None and config.ref_load is None and not config.allow_fresh_start:
            raise NoCheckpoint(
                f"{directory} and {partner} have no checkpoint of the same rollout:"
                f" {_contents(directory)}, {_contents(partner)}"
            )
        return found
    found = find(directory, config.ckpt_step)
    if found is None and config.ref_load is None and not config.allow_fresh_start:
        raise NoCheckpoint(f"{directory} has no checkpoint: {_contents(directory)}")
    return found


def of_critic(config: Config) -> Path | None:
    """The directory of the checkpoints that the critic goes on from; None where it starts anew.

    A model that it started from (--critic-load) gives way to checkpoints in <load>/critic, as --hf-checkpoint does to
    --load: so the same words start a run, and start it again.
    """
    if config.critic_load is None or not is_model(config.critic_load):
        return config.critic_load and Path(config.critic_load)
    if config.load is None or config.finetune:
        return None
    own = Path(config.critic_save if config.save == config.load and config.critic_save else f"{config.load}/critic")
    return own if rollouts(own) else None


def is_model(directory: str | Path) -> bool:
    """Whether it is in Hugging Face's format, and no directory of checkpoints."""
    return os.path.isfile(Path(directory) / "config.json")  # which raises nothing


def _listed(there: list[int]) -> str:
    return ", ".join(map(name_of, there[-5:])) or "none"


def _contents(directory: Path) -> str:
    if not directory.is_dir():
        return "there is no such directory"
    if is_model(directory):
        return "it is a Hugging Face model, which --hf-checkpoint is for"
    names = sorted(path.name for path in directory.iterdir())
    return f"it holds {', '.join(names[:5])}" if names else "it is empty"
