"""The command as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slime.bench.report import Report, Row


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slime.bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_one_line_of_json_with_the_ratio_and_progress_beside_it(tiny_model: Path, tmp_path: Path) -> None:
    sizes = ["--prompts", "3", "--samples", "2", "--response-tokens", "4", "--rounds", "2"]
    logs = ["--logs", str(tmp_path)]
    done = bench(
        "rollout", "--json", "--hf-checkpoint", str(tiny_model), *sizes, *logs, "--sglang-max-running-requests", "4"
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    measured = json.loads(line)
    assert (measured["bench"], measured["target"]) == ("rollout", 0.95)
    assert measured["ratio"] == measured["rows"][0]["ratio"] > 0
    assert [row["name"] for row in measured["rows"]] == [
        "all samples",
        "slowest sample",
        "median sample",
        "first token",
    ]
    assert all(row["bare"] > 0 and row["ours"] > 0 for row in measured["rows"])
    assert "starting an engine" in done.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"engine.log", "router.log"}


def test_options_that_are_nobodys_are_refused(tiny_model: Path) -> None:
    done = bench("rollout", "--hf-checkpoint", str(tiny_model), "--sglang-max-runing-requests", "4")
    assert done.returncode == 1
    assert "--sglang-max-runing-requests" in done.stderr
    assert "did you mean --sglang-max-running-requests" in done.stderr


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    done = bench("rollout", "--hf-checkpoint", str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path} is not the directory of a model" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_count_of_zero_is_refused() -> None:
    done = bench("rollout", "--rounds", "0")
    assert done.returncode == 2
    assert "must be at least 1, not 0" in done.stderr


def test_the_ratio_is_the_median_of_neighbours() -> None:
    row = Row.of_pairs("all", "tokens/s", bare=[100, 50, 10], ours=[90, 60, 9.5])
    assert (row.bare, row.ours) == (50, 60)
    assert (row.ratio, row.least, row.most) == pytest.approx((0.95, 0.9, 1.2))


@pytest.mark.parametrize(("ratio", "verdict"), [(0.95, "reached"), (0.9499, "missed")])
def test_the_table_lines_up_and_gives_a_verdict(ratio: float, verdict: str) -> None:
    rows = [Row("all samples", "tokens/s", 12345.6, 12000, ratio, 0.9, 1), Row("first token", "ms", 1, 2, 2, 2, 2)]
    report = Report("rollout", "a setup", rows, ratio, 0.95)
    assert "median over neighbours in time" in json.loads(report.line())["note"]
    table = report.table()
    header, first, second = table.splitlines()[2:5]
    assert len(header) == len(first) == len(second)
    assert "12345.6" in first and first.endswith("0.90 and 1.00")
    assert table.endswith(f"(target 0.95: {verdict})")
