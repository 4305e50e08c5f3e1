"""The recorded rollouts of --load-debug-rollout-data: whether all that a run will come to are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slime.config import checkpoint_files
from slime.config.config import Config
from slime.config.errors import Problem

READS = {
    "load_debug_rollout_data", "num_rollout", "start_rollout_id", "load", "ckpt_step", "finetune", "ref_load",
    "critic_load", "advantage_estimator",
}  # fmt: skip


def look(config: Config, unsound: set[str]) -> Iterator[Problem]:
    """The first of its files that is not there, and of how many more the same is true."""
    template = config.load_debug_rollout_data
    if template is None or READS & unsound:
        return
    try:
        first = checkpoint_files.first_rollout(config)
        end = first + 1 if config.num_rollout is None else config.num_rollout
        files = [Path(template.format(rollout_id=rollout)) for rollout in range(first, end)]
    except (LookupError, ValueError):  # said of --load, and of the placeholder
        return
    missing = dict.fromkeys(file for file in files if not file.is_file())
    if not missing:
        return
    file, *others = missing
    rollout = first + files.index(file)
    more = f", nor those of {len(others)} later ones" if others else ""
    fix = "record them with --save-debug-rollout-data"
    if rollout > first:
        fix = f"give --num-rollout {rollout}, or {fix}"
    what = f"there is no file {file}, which rollout {rollout} trains on{more}"
    yield Problem("--load-debug-rollout-data", what, fix)
