"""What the bench measures, worked out by hand, and the command as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slime.bench.pack import PackReport, Row, efficiency, first_fit, imbalance


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slime.bench", "pack", *words], capture_output=True, text=True, timeout=120
    )


def test_first_fit_by_hand() -> None:
    # 60 opens the first, 50 the second, 40 fits the first, 60 neither, 10 the second (the first is full).
    assert first_fit([0, 1, 2, 3, 4], [60, 50, 40, 60, 10], 100) == [[0, 2], [1, 4], [3]]


def test_efficiency_counts_the_room_of_all_ranks() -> None:
    # 300 tokens in two ranks x three micro-batches x 100, since the first rank needs three.
    assert efficiency([[[0], [1], [2]], [[3]]], 300, 100) == 0.5


def test_imbalance_is_of_the_rank_with_the_most_tokens() -> None:
    assert imbalance([[[0], [1]], [[2]]], [30, 30, 20]) == pytest.approx(60 / 40 - 1)


def test_one_line_of_json_with_its_headlines() -> None:
    done = bench("--json", "--ranks", "2", "8")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    rows = measured["rows"]
    assert [row["ranks"] for row in rows] == [2, 8]
    assert measured["efficiency"] == min(row["efficiency"] for row in rows)
    assert measured["imbalance"] == max(row["imbalance"] for row in rows)
    assert measured["seconds_100k"] == max(row["seconds_100k"] for row in rows) > 0
    for row in rows:
        assert row["efficiency_first_fit"] < 0.9 < row["efficiency"] <= row["efficiency_bound"] <= 1
        assert row["imbalance_bound"] <= row["imbalance"] < 1e-4 < 0.05 < row["imbalance_first_fit"]
    assert 0.99 < measured["ratio"] <= 1  # of the efficiency to what no plan can beat


def test_the_table_lines_up() -> None:
    rows = [Row(8, 512, 0.9, 0.7, 0.9, 6e-6, 0.33, 0, 0.4), Row(1024, 65536, 0.93, 0.65, 0.93, 1e-4, 0.5, 0.1, 0.5)]
    table = PackReport("pack", "a setup", rows, 0.9, 1e-4, 0.5, 1.0).table().splitlines()
    assert len(table[4]) == len(table[5]) == len(table[3])
    assert table[-1].endswith("(target 1 s: reached)")


def test_options_of_the_configuration_are_refused() -> None:
    done = bench("--ranks", "2", "--lr", "1")
    assert done.returncode == 1
    assert "--lr: is no option of this bench" in done.stderr
