"""Where the checkpoints of a run lie, laid out as users of Megatron know it. Names and looking only: slime.training
writes.

    DIR/latest_checkpointed_iteration.txt   "3", or "release" for weights alone
    DIR/iter_0000003/                       Megatron's torch_dist format, and state.json: trained up to rollout 3
    DIR/rollout/3.json                      the position in the data, and what was put back, after generating rollout 3
    DIR/rollout/3.buffer.json               what was handed out then, and not in a batch yet

Invariant: a checkpoint's directory has its name only once it is whole. So whatever has the name can be loaded.
"""

from __future__ import annotations

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


def rollouts(directory: Path) -> list[int]:
    """Of the checkpoints that are there, in rising order."""
    found = (re.fullmatch(r"iter_(\d{7,})", path.name) for path in directory.glob("iter_*"))
    return sorted(int(match[1]) for match in found if match)


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
    marker = directory / MARKER
    latest = marker.read_text(encoding="utf-8").strip() if marker.is_file() else ""
    named = directory / (name_of(int(latest)) if latest.isdigit() else RELEASE)
    if latest and named.is_dir():
        return named
    return directory / name_of(there[-1]) if there else None


def find_with(directory: str | Path, other: str | Path, step: int | None = None) -> Path | None:
    """The same where `other` must have a checkpoint of that rollout, too: policy and critic go on from one moment."""
    latest = [find(path) for path in (directory, other)]
    if step is None and all(path is not None and path.name != RELEASE for path in latest):
        common = set(rollouts(Path(directory))) & set(rollouts(Path(other)))
        last = min(int(path.name.removeprefix("iter_")) for path in latest)
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


def trained(checkpoint: Path) -> int:
    """How many rollouts it has been trained on, by its name; none where it holds weights alone."""
    weights_alone = checkpoint.name == RELEASE or not (checkpoint / STATE).is_file()
    return 0 if weights_alone else int(checkpoint.name.removeprefix("iter_")) + 1


def first_rollout(config: Config) -> int:
    """How many rollouts are done when a run starts. Raises NoCheckpoint as `to_load` does."""
    if config.start_rollout_id is not None:
        return config.start_rollout_id
    found = None if config.finetune or config.debug_rollout_only else to_load(config)
    return 0 if found is None else trained(found)


def is_model(directory: str | Path) -> bool:
    """Whether it is in Hugging Face's format, and no directory of checkpoints."""
    return (Path(directory) / "config.json").is_file()


def _listed(there: list[int]) -> str:
    return ", ".join(map(name_of, there[-5:])) or "none"


def _contents(directory: Path) -> str:
    if not directory.is_dir():
        return "there is no such directory"
    if is_model(directory):
        return "it is a Hugging Face model, which --hf-checkpoint is for"
    names = sorted(path.name for path in directory.iterdir())
    return f"it holds {', '.join(names[:5])}" if names else "it is empty"
