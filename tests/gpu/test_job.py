"""train.py on GPUs: three steps, the engine's weights compared with the trainer's after each update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime.observe import read_metrics
from tests.runs import train

STEPS = 3
COMMON = [
    "--device",
    "cuda",
    "--bf16",
    "--num-rollout",
    str(STEPS),
    "--skip-eval-before-train",
    "--check-weight-update-equal",
]


def run(tiny, tmp_path: Path, *options: str) -> list[dict]:
    files = ["--hf-checkpoint", str(tiny.model), "--prompt-data", str(tiny.train)]
    train(
        tmp_path,
        "--config",
        "configs/tiny-grpo.yaml",
        *files,
        "--eval-prompt-data",
        "sort",
        str(tiny.heldout),
        *COMMON,
        *options,
    )
    return read_metrics(tmp_path / "run")


def differences(rows: list[dict]) -> list[float]:
    return [
        row["train/train_rollout_logprob_abs_diff"] for row in rows if "train/train_rollout_logprob_abs_diff" in row
    ]


def test_in_turns_on_one_gpu(tiny, tmp_path):
    """Weights go by CUDA IPC, and the engine releases its memory while the trainer works."""
    rows = run(tiny, tmp_path, "--colocate", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1")
    assert len(differences(rows)) == STEPS
    assert max(differences(rows)) < 0.05


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_side_by_side_on_two_gpus(tiny, tmp_path):
    """Weights go by NCCL."""
    rows = run(tiny, tmp_path, "--no-colocate", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1")
    assert len(differences(rows)) == STEPS
    assert max(differences(rows)) < 0.05
