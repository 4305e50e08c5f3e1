"""What tests of training run on ranks: Megatron needs torch patched, so none of it in the test process."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from tests.training.rollouts import Made, Routes, Trained, shares

COMMON = [
    "--rollout-batch-size",
    "10",
    "--num-rollout",
    "10",
    "--no-bf16",
    "--lr",
    "1e-3",
    "--rollout-temperature",
    "1.0",
]


@contextmanager
def trainer(directory: str, *options: str):
    """A Trainer on the ranks that are there."""
    gc.collect()  # the one before: its process groups have dozens of threads
    from slime.config import load
    from slime.training.trainer import Trainer

    made = Trainer(
        load(["--hf-checkpoint", directory, *COMMON, *options]), dist.get_rank(), dist.get_world_size(), "127.0.0.1", 0
    )
    try:
        yield made
    finally:
        made.close()


def train(
    directory: str, options: list[str], samples: list[Made], *, rollouts: int = 2, **sharing: Any
) -> list[Trained]:
    """Trains on the same rollout a few times; a policy that has a critic as train_with_critic does."""
    if "ppo" in options:
        from tests.training.critic_ranks import train_with_critic

        return train_with_critic(directory, options, samples, **sharing)
    with trainer(directory, *options) as made:
        batch = shares(samples, made.dp_size, **sharing)[made.dp_rank]
        results = []
        for i in range(rollouts):
            made.prepare(i, batch)
            scored = by_token(made)
            results.append(trained(made, made.update(), scored))
        return results


def by_token(made: Any) -> list[tuple[int, float]]:
    """Every response token of all ranks and its log-prob, sorted, so that it does not matter who had which. Those that
    were not computed are not there. Collective."""
    own = []
    for batch in made.prepared.micro_batches if made.parallel.counts_tokens else []:
        if batch.log_probs_R is not None:
            own += zip(batch.targets_R.tolist(), batch.log_probs_R.tolist(), strict=True)
    everyone: list[list[tuple[int, float]]] = [[]] * made.parallel.world_size
    dist.all_gather_object(everyone, own)
    return sorted(chain.from_iterable(everyone))


def trained(made: Any, result: Any, log_probs: Sequence[tuple[int, float]] = ()) -> Trained:
    weights = {
        name: float(tensor.double().flatten().cpu() @ torch.arange(tensor.numel()).double().cos())
        for bucket in made.weights(50_000, across_pp=True)
        for name, tensor in bucket
    }
    return Trained(result.rollout, result.steps, weights, list(log_probs))


def train_all(cases: dict[Any, tuple[Any, ...]]) -> dict[Any, list[Trained]]:
    """`train` of several cases, one after another in the same processes: starting those takes longer than the cases."""
    return {name: train(*arguments[:3], **arguments[3]) for name, arguments in cases.items()}


def response_log_probs(directory: str, options: list[str], samples: list[Made], **sharing: Any) -> list[float]:
    """Log-probs of all response tokens, in the order of the samples, on one rank."""
    from slime.training.forward import run
    from slime.training.packing import Packer

    (batch,) = shares(samples, 1, **sharing)
    with trainer(directory, *options) as made:
        packer = Packer(batch, device=made.parallel.device.torch)
        micro_batches = [packer.pack(chosen, step) for step in batch.steps for chosen in step.micro_batches]
        scores = run(made.model.chunks, micro_batches, made.scoring)
        return [x for of_row in scores for x in of_row["log_probs"].tolist()]


def save_and_export(directory: str, path: str, samples: list[Made]) -> tuple[dict[str, Any], dict[str, Any]]:
    """After a step of training: the tensors that `weights` yields, and those in the directory that `save_hf` wrote."""
    from safetensors.torch import load_file

    with trainer(directory) as made:
        made.train(0, shares(samples, micro_batch_size=10)[0])
        made.save_hf(path)
        exported = {name: tensor.clone() for bucket in made.weights(50_000) for name, tensor in bucket}
    return exported, load_file(f"{path}/model.safetensors")


def refusals(cases: dict[str, tuple[str, list[str], list[Made], bool]]) -> dict[str, str]:
    """What one rank says to each case (directory, options, samples, with log-probs); "" where it does not mind."""
    said = {}
    for name, (directory, options, samples, log_probs) in cases.items():
        try:
            train(directory, options, samples, rollouts=1, micro_batch_size=10, log_probs=log_probs)
            said[name] = ""
        except Exception as error:
            said[name] = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    return said


def routes(directory: str, options: list[str], samples: list[Made]) -> Routes:
    """Trains two steps on one rollout, whose rows are those of the samples in turn."""
    from megatron.core.transformer.moe.router import TopKRouter

    batch = shares(samples, num_steps=2, micro_batch_size=10, experts="--use-rollout-routing-replay" in options)[0]
    scored, trained = [], []

    def note(router: Any, _: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        chosen = output[1].nonzero()[:, 1].view(-1, 2).numpy()
        (trained if torch.is_grad_enabled() else scored).append(chosen)

    with trainer(directory, *options) as made:
        for module in made.model.chunks[0].modules():
            if isinstance(module, TopKRouter):
                module.register_forward_hook(note)
        steps = made.train(0, batch).steps
    return Routes(scored, trained, steps)
