"""Trackers: TensorBoard and Weights & Biases, each imported only when it was asked for.

Invariants: a package that is missing is said when the tracker is made, before anything else of a run starts; W&B never
gets a key as part of the configuration, and does not touch stdout.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from slime.observe import names
from slime.observe.run_dir import RunDir

WANDB_FINISH_S = 60  # what an unreachable server may cost at the end of a run; the rest stays in the local files


class TrackerError(Exception):
    """A tracker that was asked for and cannot be had; the message says what to install or change."""


class Tracker(Protocol):
    """Somewhere else that numbers go."""

    name: str
    place: str | None  # where a person looks at it, if anywhere

    def log(self, metrics: Mapping[str, float], *, step: int, axes: Sequence[str]) -> None:
        """`axes` are the step metrics that this row is plotted over, as in ("train/step",)."""

    def close(self) -> None: ...


class TrackerOptions(Protocol):
    """The options of "Logging", by their names on the command line, and the optimizer steps of a rollout."""

    use_tensorboard: bool
    tb_project_name: str | None
    tb_experiment_name: str | None
    use_wandb: bool
    wandb_mode: str | None
    wandb_dir: str | None
    wandb_key: str | None
    wandb_host: str | None
    wandb_team: str | None
    wandb_group: str | None
    wandb_project: str | None
    wandb_run_id: str | None
    disable_wandb_random_suffix: bool
    wandb_always_use_train_step: bool
    num_steps_per_rollout: int


def make_trackers(
    options: TrackerOptions, run: RunDir, phase: Callable[[str], AbstractContextManager[object]] = nullcontext
) -> list[Tracker]:
    """Those that `options` ask for; W&B shows the configuration that was saved in the run directory, which has no
    secrets. `phase` shows what is waited for: where W&B does not answer, minutes.

    Raises TrackerError for a package that is not installed, a directory that can't be written to, or a W&B that cannot
    be logged in to.
    """
    trackers: list[Tracker] = []
    if options.use_tensorboard:
        trackers.append(TensorBoard(_writable(_tensorboard_directory(options, run), "--use-tensorboard")))
    if options.use_wandb:
        _writable(Path(options.wandb_dir) if options.wandb_dir else run.path, "--use-wandb")
        with phase("opening a run of Weights & Biases"):
            trackers.append(WandB(options, run))
    return trackers


def _writable(directory: Path, option: str) -> Path:
    """Makes it if need be: what trackers raise of it, some of them in a thread, does not say whose it is."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise TrackerError(f"{option}: cannot write to {directory}: {error.strerror}") from error


class TensorBoard:
    """Event files by the tensorboard package alone: neither torch nor TensorFlow is imported."""

    name = "TensorBoard"

    def __init__(self, directory: Path) -> None:
        self._writer = _imported("tensorboard.summary", "tensorboard", "--use-tensorboard").Writer(str(directory))
        self.place = str(directory)

    def log(self, metrics: Mapping[str, float], *, step: int, axes: Sequence[str]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """One W&B run. The step of a row travels as a metric (train/step): rows may come late, on several axes."""

    name = "Weights & Biases"

    def __init__(self, options: TrackerOptions, run: RunDir) -> None:
        self._rollout_scale = options.num_steps_per_rollout if options.wandb_always_use_train_step else 1
        wandb = _imported("wandb", "wandb", "--use-wandb")
        if options.wandb_key:
            # W&B uploads the command line as metadata, and with it a key that was given there.
            sys.argv = [argument.replace(options.wandb_key, "***") for argument in sys.argv]
        group = options.wandb_group or run.path.name
        if not options.disable_wandb_random_suffix:
            group = f"{group}_{secrets.token_hex(4)}"
        settings = {"console": "off", "silent": True, "finish_timeout": WANDB_FINISH_S}
        settings |= {"api_key": options.wandb_key} if options.wandb_key else {}
        settings |= {"base_url": options.wandb_host} if options.wandb_host else {}
        try:
            self._run = wandb.init(
                mode=options.wandb_mode,
                dir=options.wandb_dir or run.path,
                entity=options.wandb_team,
                project=options.wandb_project or "slime",
                group=group,
                name=group,
                id=options.wandb_run_id,
                resume="allow" if options.wandb_run_id else None,
                config=run.read_config(),
                settings=wandb.Settings(**settings),
            )
        except wandb.errors.Error as e:
            raise TrackerError(f"--use-wandb: {e} (--wandb-mode offline needs no network and no key)") from e
        for axis in names.AXES:
            self._run.define_metric(axis)
        for prefix in names.PREFIXES:
            self._run.define_metric(f"{prefix}/*", step_metric=names.axis(f"{prefix}/"))
        self.place = self._run.settings.sync_dir if self._run.offline else self._run.url  # None: it is disabled

    def log(self, metrics: Mapping[str, float], *, step: int, axes: Sequence[str]) -> None:
        steps = {axis: step if axis.endswith("train/step") else step * self._rollout_scale for axis in axes}
        self._run.log({**metrics, **steps})

    def close(self) -> None:
        self._run.finish()


def _tensorboard_directory(options: TrackerOptions, run: RunDir) -> Path:
    """In the run directory, or in $TENSORBOARD_DIR, where a cluster's dashboard looks; by project and experiment."""
    base = Path(os.environ.get("TENSORBOARD_DIR") or run.tensorboard)
    return base.joinpath(*filter(None, (options.tb_project_name, options.tb_experiment_name)))


def _imported(module: str, package: str, option: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as e:
        raise TrackerError(
            f"{option} needs the package {package}, which cannot be imported ({e}): pip install 'slime[trackers]'"
        ) from e
