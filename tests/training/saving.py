"""A process that saves checkpoints until it is killed, started by test_checkpoint.py.

`python -m tests.training.saving MODEL DIR` goes on from the latest checkpoint in DIR. Every weight of checkpoint N is
N, so that one which was put together from two can be told. Prints N once it is loaded, and "wrong" if it is not all N.
"""

from __future__ import annotations

import sys

import torch

from slime.config import load
from slime.training.trainer import Trainer
from tests.training.ranks import COMMON


def main(model: str, directory: str) -> None:
    options = ["--hf-checkpoint", model, *COMMON, "--save", directory, "--load", directory, "--allow-fresh-start"]
    trainer = Trainer(load([*options, "--save-keep", "3"]), 0, 1, "127.0.0.1", 0)
    first = trainer.loaded.rollout_id
    parameters = [parameter for chunk in trainer.model.chunks for parameter in chunk.parameters()]
    if first >= 0 and not all(bool((parameter == first).all()) for parameter in parameters):
        print("wrong", flush=True)
    print(first, flush=True)
    for rollout_id in range(first + 1, 1_000_000):
        with torch.no_grad():
            for parameter in parameters:
                parameter.fill_(rollout_id)
        trainer.save(rollout_id, in_background=rollout_id % 3 == 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
