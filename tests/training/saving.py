"""A process that saves checkpoints until it is killed, started by test_checkpoint.py.

It goes on from the latest checkpoint in its directory. Every weight of checkpoint N is N, so that one which was put
together from two can be told. It reports N once it is loaded, and "wrong" if it is not all N.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import torch

from tests.training.ranks import COMMON


def save_for_ever(model: str, directory: str, report: Connection) -> None:
    from slime.config import load
    from slime.training.trainer import Trainer

    torch.set_num_threads(1)
    options = ["--hf-checkpoint", model, *COMMON, "--save", directory, "--load", directory, "--allow-fresh-start"]
    trainer = Trainer(load([*options, "--save-keep", "3"]), 0, 1, "127.0.0.1", 0)
    first = trainer.loaded.rollout_id
    parameters = [parameter for chunk in trainer.model.chunks for parameter in chunk.parameters()]
    right = first < 0 or all(bool((parameter == first).all()) for parameter in parameters)
    report.send(first if right else "wrong")
    for rollout_id in range(first + 1, 1_000_000):
        with torch.no_grad():
            for parameter in parameters:
                parameter.fill_(rollout_id)
        trainer.save(rollout_id, in_background=rollout_id % 3 == 0)
