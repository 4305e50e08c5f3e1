"""A training rank as a user's own program, started by the tests of test_start.py: no Ray, no test harness.

python -m tests.training.standalone CHECKPOINT OUT; rank, world size and address from the environment, as torchrun sets
them. Writes OUT/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil

from slime.config import load
from slime.training.trainer import Trainer
from tests.training.ranks import COMMON
from tests.training.rollouts import shares, varied


def main(checkpoint: str, out: str) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = load(["--hf-checkpoint", checkpoint, *COMMON])
    trainer = Trainer(config, rank, world_size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    result = trainer.train(0, shares(varied(), trainer.dp_size, micro_batch_size=5)[trainer.dp_rank])
    sockets = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    report = {"loss": result.steps[0]["train/loss"], "listens_on": sorted({c.laddr.ip for c in sockets})}
    (Path(out) / f"{rank}.json").write_text(json.dumps(report))
    trainer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
