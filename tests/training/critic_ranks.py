"""What tests of a critic run on ranks. Policy and critic are made one after the other: a process has one set of
groups."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.training.checkpoint_ranks import different, state
from tests.training.ranks import COMMON, trained, trainer
from tests.training.rollouts import Made, Trained, shares, varied

PPO = ["--advantage-estimator", "ppo"]


def write_score(model: Path, directory: Path, bias: float = 0.0) -> Path:
    """`model` with a value head beside its body, as a reward model has that SGLang serves: with a bias."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(model, directory)
    tensors = load_file(model / "model.safetensors")
    hidden = tensors["model.norm.weight"].numel()
    tensors["score.weight"] = torch.from_numpy(np.random.default_rng(5).normal(size=(1, hidden)).astype(np.float32)) / 8
    tensors["score.bias"] = torch.tensor([bias])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@contextmanager
def critic(directory: str, *options: str):
    """A Critic on the ranks that are there."""
    from slime.config import load
    from slime.training.critic import Critic

    config = load(["--hf-checkpoint", directory, *COMMON, *PPO, *options])
    made = Critic(config, dist.get_rank(), dist.get_world_size(), "127.0.0.1", 0)
    try:
        yield made
    finally:
        made.close()


def train_with_critic(directory: str, options: list[str], samples: list[Made], **sharing: Any) -> list[Trained]:
    """A rollout of the policy, then two of the critic, which is fitted to the same returns twice."""
    with critic(directory, *options) as made:
        batch = shares(samples, made.dp_size, **sharing)[made.dp_rank]
        values = made.prepare(0, batch)
    with trainer(directory, *PPO, *options) as made:
        returns = made.prepare(0, batch, values)
        results = [trained(made, made.update())]
    with critic(directory, *options) as made:
        for rollout_id in range(2):
            made.prepare(rollout_id, batch)
            results.append(trained(made, made.update(returns)))
    return results


def of_one_rank(
    directory: str, with_score: str, out: str, options: list[str], samples: list[Made], sharing: dict[str, Any]
) -> dict[str, Any]:
    """What is looked at in test_critic.py, by name."""
    found: dict[str, Any] = {}
    options = [*options, "--critic-load", with_score]
    (batch,) = shares(samples, 1, **sharing)
    with critic(directory, *options) as made:
        found["values"] = made.prepare(0, batch).tolist()
    with trainer(directory, *PPO, *options) as made:
        found["returns"] = made.prepare(0, batch, np.array(found["values"], np.float32)).tolist()
        before = trained(made, made.update(optimises=False))
        made.prepare(1, batch, np.array(found["values"], np.float32))
        found["untrained"], found["trained"] = before, trained(made, made.update())
        try:
            made.prepare(2, batch, np.zeros(3, np.float32))
        except ValueError as error:
            found["other layout"] = str(error)
        made.prepared = None
        made.config = made.checkpoints.config = made.config.replace(save=f"{out}/policy")
        made.save(0)
    with critic(directory, *options) as made:
        made.prepare(0, batch)
        found["critic"] = trained(made, made.update(np.array(found["returns"], np.float32)))
        made.save_hf(f"{out}/saved")
        found["exported"] = {name: tensor.clone() for bucket in made.weights(50_000) for name, tensor in bucket}
    with critic(directory) as made:
        found["new"] = made.prepare(0, batch).tolist()
    with critic(directory, "--critic-load", f"{out}/saved") as made:
        found["loaded"] = {name: tensor.clone() for bucket in made.weights(50_000) for name, tensor in bucket}
    try:
        with critic(directory, "--critic-load", f"{out}/policy"):
            pass
    except ValueError as error:
        found["checkpoint of a policy"] = str(error)
    try:
        with critic(directory, "--critic-load", str(write_score(Path(directory), Path(out) / "biased", bias=0.5))):
            pass
    except ValueError as error:
        found["biased"] = str(error)
    return found


def rollouts(made: Any, first: int, last: int) -> list[dict[str, float]]:
    """Fits the critic to made-up returns of rollouts first..last-1, each of other samples; the metrics of the steps."""
    figures = []
    for rollout_id in range(first, last):
        batch = shares(varied(8, seed=rollout_id), made.dp_size, num_steps=2, micro_batch_size=4)[made.dp_rank]
        values = made.prepare(rollout_id, batch)
        figures += made.update(
            None if values is None else np.cos(values + np.arange(len(values))).astype(np.float32)
        ).steps
    return figures


def four_against_two_and_two(directory: str, out: str, cases: dict[str, list[str]]) -> dict[str, Any]:
    """Of each case of options: (what differs afterwards, the metrics of steps 4..7 of both, the weights that were
    saved, and those in the directory that the checkpoint was converted to)."""
    from safetensors.torch import load_file

    from slime.training.conversion import torch_dist_to_hf

    found = {}
    for name, options in cases.items():
        path = str(Path(out) / name.replace(" ", "-"))
        with critic(directory, *options) as made:
            whole = rollouts(made, 0, 4)[4:]
            expected = state(made)
        with critic(directory, *options, "--save", f"{path}/policy", "--critic-save", path) as made:
            rollouts(made, 0, 2)
            made.save(1)
        with critic(directory, *options, "--critic-load", path) as made:
            assert (made.loaded.rollout_id, made.loaded.num_steps) == (1, 4)
            saved = {weight: tensor.clone() for bucket in made.weights(50_000) for weight, tensor in bucket}
            resumed = rollouts(made, 2, 4)
            differences = different(expected, state(made))
        torch_dist_to_hf(0, 1, 0, f"{path}/iter_0000001", directory, f"{path}-converted")
        found[name] = differences, whole, resumed, saved, load_file(f"{path}-converted/model.safetensors")
    return found


def rates_otherwise(directory: str, saved: str, options: list[str]) -> list[float]:
    """Of a step after two rollouts that were saved with other options."""
    with critic(directory, "--critic-load", saved, *options) as made:
        figures = rollouts(made, 2, 3)[0]
        return [figures[name] for name in figures if name.startswith("critic-train/lr-")]
