"""Training ranks that find each other by themselves, and under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime.platform import ports

DEADLINE_S = 120.0
MODULE = "tests.training.standalone"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def port():
    with ports.reserve("127.0.0.1") as held:
        yield str(ports.number(held))


def finish(processes: list[subprocess.Popen]) -> None:
    try:
        for process in processes:
            output, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start(command: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def reports(out: Path) -> list[dict]:
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_meet_and_listen_on_loopback_alone(model, port, tmp_path):
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    finish([start(["-m", MODULE, model, str(tmp_path)], RANK=str(rank), **common) for rank in range(2)])
    first, second = reports(tmp_path)
    assert first["loss"] == second["loss"]
    assert first["listens_on"] == second["listens_on"] == ["127.0.0.1"]


def test_under_torchrun(model, port, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    finish([start([*torchrun, "--master-port", port, "-m", MODULE, model, str(tmp_path)])])
    first, second = reports(tmp_path)
    assert first["loss"] == second["loss"]
