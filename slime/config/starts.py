"""The checkpoints that a run starts from: whether they are there and whole, and whether markers lead to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slime.config import checkpoint_dir, checkpoint_files
from slime.config.config import Config
from slime.config.critic import critic_config
from slime.config.errors import Problem


def problems(config: Config, unsound: set[str]) -> Iterator[Problem]:
    for option, start in _starts(config).items():
        try:
            checkpoint = checkpoint_dir.to_load(start)
        except checkpoint_dir.NoCheckpoint as error:
            if option == "--critic-load" and config.load is not None:
                continue  # said of --load: policy and critic go on from one moment
            fix = "--allow-fresh-start to start from --hf-checkpoint"
            if config.ckpt_step is not None:
                fix = "name one of these"
            yield Problem(option, str(error), fix)
            continue
        if checkpoint is not None:
            lost = None if config.finetune else checkpoint_files.lost_state(checkpoint)
            if lost is not None:
                yield Problem(option, lost.what, lost.fix)
            yield from damages(option, checkpoint)
            if "hf_checkpoint" in unsound:
                continue
            if unlike := checkpoint_files.of_another_model(checkpoint, start.hf_checkpoint):
                what = f"{checkpoint} is of another model than {start.hf_checkpoint}: {unlike}"
                yield Problem(option, what, "name the model that it was trained from, or another checkpoint")
    try:
        lost = checkpoint_files.lost_position(config)
    except (checkpoint_dir.NoCheckpoint, checkpoint_files.DamagedCheckpoint):  # said above
        return
    if lost is not None:
        yield Problem(_of_data(config), lost.what, lost.fix)


def damages(option: str, checkpoint: Path) -> Iterator[Problem]:
    """What is wrong with the files of one that `option` leads to."""
    for damage in checkpoint_files.damages(checkpoint):
        yield Problem(option, damage.what, damage.fix)


def notes(config: Config) -> Iterator[str]:
    """Expects that there are no problems. What is gone on with, though it may not be meant."""
    files = checkpoint_files.data_files(config)
    if files is not None and not files[1].exists():
        lost = "what had been handed out and was not trained on is not taken up again"
        yield f"{_of_data(config)}: {files[1]} is not there: {lost}."
    for option, start in _starts(config).items():
        if config.ckpt_step is None and start.load is not None:
            checkpoint = checkpoint_dir.to_load(start)
            yield from marker_notes(option, start.load, checkpoint)
            latest = checkpoint_dir.find(start.load)
            if checkpoint not in (None, latest):
                other = "critic" if option == "--load" else "policy"
                yield f"{option}: {checkpoint} is taken, not {latest.name}: the {other} has none of that rollout."


def marker_notes(option: str, directory: str, checkpoint: Path | None) -> Iterator[str]:
    if checkpoint is not None and (wrong := checkpoint_dir.wrong_marker(directory)):
        yield f"{option}: {wrong}: {checkpoint} is taken instead."


def _of_data(config: Config) -> str:
    """The option by which a run goes on in its prompts."""
    return "--load" if config.start_rollout_id is None else "--start-rollout-id"


def _starts(config: Config) -> dict[str, Config]:
    """By the option that leads to its checkpoint, the configuration of each model that is trained."""
    return {"--load": config} | ({"--critic-load": critic_config(config)} if config.has_critic else {})
