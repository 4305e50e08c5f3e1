"""The train bench as a user runs it, and the samples it draws."""

from __future__ import annotations

import json

import pytest

from slime.bench.train import TrainReport
from tests.bench.test_rollout import bench


def test_one_line_of_json_in_which_both_sides_compute_the_same() -> None:
    sizes = ["--samples", "12", "--median", "16", "--rounds", "2", "--padded-rounds", "1", "--memory-steps", "10"]
    done = bench("train", "--json", "--ranks", "2", *sizes)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    measured = json.loads(line)
    assert measured["bench"] == "train"
    assert measured["loss_difference"] < 1e-5
    for name in ("ratio", "packed_speedup", "tokens_per_s", "tflops", "mfu", "peak_tflops"):
        assert measured[name] > 0, name
    assert measured["mfu"] == pytest.approx(measured["tflops"] / measured["peak_tflops"])
    assert measured["host_mb_growth"] < 32  # in ten steps; Python's and the allocator's own caches are smaller
    assert measured["peak_source"] == "measured in float32"
    assert "2 x CPU" in measured["setup"]


def test_options_that_are_nobodys_are_refused() -> None:
    done = bench("train", "--learning-rate", "1")
    assert done.returncode == 1
    assert "did you mean --lr" in done.stderr


@pytest.mark.parametrize(("ratio", "verdict"), [(1.05, "reached"), (1.0501, "missed")])
def test_the_table_gives_a_verdict(ratio: float, verdict: str) -> None:
    speeds = {"tokens_per_s": 1e4, "tflops": 0.1, "mfu": 0.5, "peak_tflops": 0.2, "peak_source": "data sheet"}
    padded = {"seconds_padded": 4.0, "packed_speedup": 4.0}
    memory = {"host_mb_growth": 0.0, "memory_steps": 200}
    report = TrainReport("train", "a setup", 1.0, ratio, ratio, 1e-7, **padded, **speeds, **memory)
    assert report.table().endswith(f"(target 1.05: {verdict})")
