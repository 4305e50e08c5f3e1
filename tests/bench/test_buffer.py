"""The buffer bench as a user runs it, on real actors. Takes 20 s."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slime.bench.buffer import BufferReport


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slime.bench", "buffer", *words], capture_output=True, text=True, timeout=300
    )


def test_one_line_of_json_with_its_headlines() -> None:
    done = bench("--json", "--samples", "64", "--tokens", "300", "--ranks", "2", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert "64 samples of 300 tokens in arrays, to 2 ranks" in measured["setup"]
    assert measured["gb_per_s"] * 1e9 * measured["seconds"] == pytest.approx(64 * 4 * (300 + 150 + 150)), (
        "tokens, log-probs, masks"
    )
    assert measured["samples_per_s"] * measured["seconds"] == pytest.approx(64)
    assert measured["ratio"] > 0 and measured["ledger_ms_per_step"] > 0 and "driver_mb_growth" in measured


def test_arguments_that_do_not_fit_are_refused() -> None:
    done = bench("--samples", "9", "--lr", "1")
    assert done.returncode == 1
    assert "9 is not a multiple of 8" in done.stderr and "--lr: is no option of this bench" in done.stderr


def test_the_table_says_whether_the_target_is_reached() -> None:
    table = BufferReport("buffer", "a setup", 1.5, 1e4, 0.4, 1.8, 2.0, 0.75, 0.1, 9.0, 2.2, 4.0).table()
    assert "9.0 ms      of callers' time a step, 2.2 us a sample: 2% of a step of 0.5 s" in table
    assert table.endswith("buffer: 1.50 GB/s (target 1 GB/s: reached)")
