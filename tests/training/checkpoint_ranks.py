"""What tests of checkpoints run on ranks."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.training.ranks import trainer
from tests.training.rollouts import shares, varied


def several(calls: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The results of functions below, each called with its arguments, one after another."""
    return {name: function(*arguments) for name, (function, *arguments) in calls.items()}


def steps(made: Any, first: int, last: int, **sharing: Any) -> list[dict[str, float]]:
    """Trains on rollouts first..last-1, each of other samples, two optimizer steps each; their metrics."""
    figures = []
    for rollout_id in range(first, last):
        batch = shares(varied(8, seed=rollout_id), made.dp_size, num_steps=2, **{"micro_batch_size": 4, **sharing})
        figures += made.train(rollout_id, batch[made.dp_rank]).steps
    return figures


def state(made: Any) -> dict[str, Any]:
    """Everything that this rank would go on with: weights, optimizer, schedule, random states."""
    from slime.training.random_state import random_states

    found: dict[str, Any] = {f"random.{name}": tensor.clone() for name, tensor in random_states().items()}
    for bucket in made.weights(50_000, across_pp=True):
        found |= {f"weight.{name}": tensor.clone() for name, tensor in bucket}
    optimizer = made.model.optimizer
    for index, chained in enumerate(getattr(optimizer, "chained_optimizers", [optimizer])):
        groups = chained.optimizer.param_groups
        for group, options in enumerate(groups):
            found[f"optimizer{index}.group{group}.lr"] = options["lr"]
            for position, parameter in enumerate(options["params"]):
                where = f"optimizer{index}.{group}.{position}"
                found[f"{where}.main"] = parameter.detach().clone()
                for name, value in chained.optimizer.state[parameter].items():
                    found[f"{where}.{name}"] = value.clone() if torch.is_tensor(value) else value
    return found | {"schedule": made.model.schedule.state_dict(), "num_steps": made.num_steps}


def different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names of what is not equal to the last bit."""

    def equal(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if torch.is_tensor(x) else x == y

    return sorted(name for name in a.keys() | b.keys() if name not in a or name not in b or not equal(a[name], b[name]))


def six_against_three_and_three(directory: str, out: str, cases: dict[str, list[str]]) -> dict[str, Any]:
    """Of each case of options: (what differs afterwards, the metrics of steps 6..11 of both)."""
    found = {}
    for name, options in cases.items():
        save = ["--save", str(Path(out) / name.replace(" ", "-"))]
        with trainer(directory, *options) as made:
            whole = steps(made, 0, 6)[6:]
            expected = state(made)
        with trainer(directory, *options, *save) as made:
            steps(made, 0, 3)
            made.save(2, weight_version=3)
        with trainer(directory, *options, "--load", save[1]) as made:
            assert (made.loaded.rollout_id, made.loaded.num_steps, made.loaded.weight_version) == (2, 6, 3)
            resumed = steps(made, 3, 6)
            found[name] = different(expected, state(made)), whole, resumed
    return found


def twice(directory: str, out: str, options: list[str]) -> tuple[list[str], bool, list[str]]:
    """Two runs of five rollouts: what differs in their states, whether metrics are the same, and in the recorded
    batches."""
    found = []
    for attempt in range(2):
        recorded = f"{out}/{attempt}-{{rollout_id}}-{{rank}}.npz"
        with trainer(directory, *options, "--save-debug-train-data", recorded) as made:
            figures = steps(made, 0, 5)
            rank = made.parallel.rank
            with np.load(recorded.format(rollout_id=4, rank=rank)) as file:
                arrays = {name: torch.from_numpy(file[name]) for name in file.files}
            found.append((state(made), figures, arrays))
    (a, figures, arrays), (b, figures_again, arrays_again) = found
    assert {"0.tokens_1T", "0.advantages_R", "0.log_probs_R", "0.mask_R"} <= arrays.keys()
    return different(a, b), figures == figures_again, different(arrays, arrays_again)


def save_at(directory: str, out: str, options: list[str]) -> dict[str, float]:
    """Trains two rollouts and saves after the first: the first step of the second, and the weights after it."""
    with trainer(directory, *options, "--save", out) as made:
        steps(made, 0, 1)
        made.save(0)
        return _continued(made)


def save_shifted(directory: str, out: str, options: list[str]) -> None:
    """As Megatron alone writes it."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    from slime.training import optimizer_state

    ours = DistributedOptimizer.sharded_param_state_fully_reshardable
    DistributedOptimizer.sharded_param_state_fully_reshardable = optimizer_state.SHIFTED
    try:
        save_at(directory, out, options)
    finally:
        DistributedOptimizer.sharded_param_state_fully_reshardable = ours


def load_at(directory: str, out: str, layouts: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    """The same of each layout that goes on from there."""
    found = {}
    for name, options in layouts.items():
        with trainer(directory, *options, "--load", out) as made:
            found[name] = _continued(made)
    return found


def squares(directory: str, options: list[str]) -> dict[str, float]:
    """Of each tensor of the weights that a run starts with, the sum of squares."""
    with trainer(directory, *options) as made:
        buckets = made.weights(50_000, across_pp=True)
        return {name: float(tensor.double().square().sum()) for bucket in buckets for name, tensor in bucket}


def _continued(made: Any) -> dict[str, float]:
    last = steps(made, 1, 2)[-1]
    figures = {name: last[name] for name in ("train/loss", "train/grad_norm", "train/step")}
    for bucket in made.weights(50_000, across_pp=True):
        figures |= {name: float(tensor.double().square().sum()) for name, tensor in bucket}
    return figures


def kept(directory: str, out: str) -> tuple[list[str], list[str], list[str]]:
    """Five saves of which two are kept, one of them in the background; the same rollout twice; what is there
    afterwards."""
    options = ["--save", out, "--save-keep", "2", "--no-save-optim"]
    with trainer(directory, *options) as made:
        for rollout_id in (0, 1, 2, 3, 3):
            made.save(rollout_id, in_background=rollout_id == 1)
        after = sorted(path.name for path in Path(out).iterdir())
        made.save(4, in_background=True)
        expected = state(made)
        steps(made, 0, 3)  # the weights change while the files may not be written yet
        files = sorted(path.name for path in (Path(out) / "iter_0000004").iterdir())
    with trainer(directory, "--load", out, "--no-load-optim") as made:
        assert made.loaded.rollout_id == 4
        wrong = [name for name in different(expected, state(made)) if name.startswith("weight.")]
    return after, files, wrong


def too_large(directory: str, out: str) -> tuple[str, list[str]]:
    """What a save says that the system does not let write on, and what is there afterwards."""
    from slime.models.checkpoint import CheckpointError

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with trainer(directory, "--save", out) as made:
        made.save(0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            made.save(1)
        except CheckpointError as error:
            return str(error), sorted(path.name for path in Path(out).iterdir())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return "", []


def scored_by(directory: str, out: str, options: list[str]) -> list[list[dict[str, float]]]:
    """Metrics of a rollout with a reference and a teacher: a model in Hugging Face's format, and the checkpoint of
    it."""
    with trainer(directory, "--save", out) as made:
        for rollout_id in range(2):
            steps(made, rollout_id, rollout_id + 1)
            made.save(rollout_id)
            made.save_hf(f"{out}/model-{rollout_id}")
    found = []
    for reference, teacher in (
        ([f"{out}/model-0"], [f"{out}/model-1"]),
        ([out, "--ref-ckpt-step", "0"], [out]),
    ):
        with trainer(directory, *options, "--ref-load", *reference, "--opd-teacher-load", *teacher) as made:
            found.append(steps(made, 0, 1))
    return found


def spoil(saved: str, out: str) -> None:
    """Copies of a checkpoint of which each has lost something, or holds what was never written."""
    for name, file, content in (
        ("lost-state", "state.json", None),
        ("broken-state", "state.json", "{"),
        ("lost-model", "config.json", None),
        ("of-others", "config.json", None),
    ):
        checkpoint = Path(out) / name / "iter_0000000"
        shutil.copytree(Path(saved) / checkpoint.name, checkpoint)
        (checkpoint / file).unlink() if content is None else (checkpoint / file).write_text(content)
    (checkpoint / "state.json").unlink()


def refusals_to_load(cases: dict[str, tuple[str, list[str]]]) -> dict[str, str]:
    """What a rank says to each case (model, options); "" where it starts."""
    said = {}
    for name, (directory, options) in cases.items():
        try:
            with trainer(directory, *options):
                said[name] = ""
        except ValueError as error:
            said[name] = str(error)
    return said


def resumed_otherwise(
    directory: str, out: str, kinds: dict[str, list[str]], options: list[str]
) -> dict[str, tuple[list[dict[str, Any]], dict[str, float]]]:
    """Two steps and a checkpoint of each kind of optimizer, and a third step with other `options`: those of its groups
    of parameters, and how far parameters and moments after it are from what Adam makes of them by OTHERWISE."""
    found = {}
    for name, kind in kinds.items():
        save = str(Path(out) / name.replace(" ", "-"))
        with trainer(directory, *kind, "--save", save) as made:
            steps(made, 0, 1)
            made.save(0)
        with trainer(directory, *kind, *options, "--load", save) as made:
            assert made.num_steps == 2
            groups = [
                {name: group[name] for name in ("lr", "max_lr", "min_lr", "wd_mult", "betas", "eps")}
                for group in made.model.optimizer.param_groups
            ]
            before = _adam(made)
            made.train(1, shares(varied(8, seed=1), num_steps=1, micro_batch_size=4)[0])
            found[name] = groups, _far_from_adam(before, _adam(made))
    return found


OTHERWISE = {"lr": 0.02, "beta1": 0.5, "beta2": 0.75, "eps": 1e-3, "decay": 0.125}  # of the third step


def _adam(made: Any) -> list[tuple[float, dict[str, torch.Tensor]]]:
    """Of each parameter by what the weight decay of its group is multiplied: itself, and its moments, in float64."""
    optimizer = made.model.optimizer
    found = []
    for chained in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in chained.optimizer.param_groups:
            for parameter in group["params"]:
                moments = {name: chained.optimizer.state[parameter][name] for name in ("exp_avg", "exp_avg_sq")}
                tensors = {"main": parameter.detach()} | moments
                found.append((group["wd_mult"], {name: tensor.double().clone() for name, tensor in tensors.items()}))
    return found


def _far_from_adam(before: list[Any], after: list[Any]) -> dict[str, float]:
    """The largest differences. The gradient is taken from the first moment: m' = b1 m + (1 - b1) g."""
    lr, beta1, beta2, eps, decay = OTHERWISE.values()
    far = {"main": 0.0, "exp_avg_sq": 0.0}
    for (multiple, old), (_, new) in zip(before, after, strict=True):
        gradient = (new["exp_avg"] - beta1 * old["exp_avg"]) / (1 - beta1)
        second = beta2 * old["exp_avg_sq"] + (1 - beta2) * gradient.square()
        size = (second / (1 - beta2**3)).sqrt() + eps
        main = old["main"] * (1 - lr * decay * multiple) - lr * new["exp_avg"] / (1 - beta1**3) / size
        for name, expected in {"main": main, "exp_avg_sq": second}.items():
            far[name] = max(far[name], float((new[name] - expected).abs().max()))
    return far
