"""What tests of training run on ranks (tests.distributed): Megatron needs torch patched, so none of it in the test process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from tests.training.rollouts import Made, shares

COMMON = ["--rollout-batch-size", "10", "--num-rollout", "10", "--no-bf16", "--lr", "1e-3", "--rollout-temperature", "1.0"]


@contextmanager
def trainer(directory: str, *options: str):
    """A Trainer on the ranks that are there."""
    from slime.config import load
    from slime.training.trainer import Trainer

    made = Trainer(load(["--hf-checkpoint", directory, *COMMON, *options]), dist.get_rank(), dist.get_world_size(), "127.0.0.1", 0)
    try:
        yield made
    finally:
        made.close()


def train(directory: str, options: list[str], samples: list[Made], rollouts: int = 2, **sharing: Any) -> list[Any]:
    """TrainResults of the same rollout trained on a few times."""
    with trainer(directory, *options) as made:
        return [made.train(i, shares(samples, made.dp_size, **sharing)[made.dp_rank]) for i in range(rollouts)]


def train_all(cases: dict[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    """`train` of several cases, one after another in the same processes: starting those takes longer than the cases."""
    return {name: train(*arguments[:3], **arguments[3]) for name, arguments in cases.items()}


def response_log_probs(directory: str, options: list[str], samples: list[Made], **sharing: Any) -> list[float]:
    """Log-probs of all response tokens, in the order of the samples, on one rank."""
    from slime.training.forward import log_probs
    from slime.training.packing import Packer

    (batch,) = shares(samples, 1, **sharing)
    with trainer(directory, *options) as made:
        packer = Packer(batch, device=made.parallel.device.torch)
        micro_batches = [packer.pack(chosen, step) for step in batch.steps for chosen in step.micro_batches]
        return [x for scores in log_probs(made.model.chunks, micro_batches, made.scoring) for x in scores.tolist()]
