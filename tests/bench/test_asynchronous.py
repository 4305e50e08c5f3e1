"""The parts of the async bench; tests/test_end_to_end.py runs what it measures."""

from __future__ import annotations

import argparse
import io
import json
from statistics import median

import pytest

from slime.bench.asynchronous import SLOWER, AsyncReport, Side, add_times, run, train
from slime.config import checkout
from slime.observe import Console
from slime.rollout.types import RolloutError
from slime.tiny import make_tiny

SYNC = Side(seconds=200.0, reward=0.93, trained=5120, dropped=0, age_mean=0.0, age_max=0)


def side(seconds: float, reward: float) -> Side:
    return Side(seconds, reward, trained=5120, dropped=0, age_mean=1.5, age_max=4)


def test_one_line_of_json_with_its_headlines() -> None:
    measured = json.loads(AsyncReport("async", "a setup", SYNC, side(50.0, 0.94)).line())
    assert (measured["ratio"], measured["reward_sync"], measured["reward_async"]) == (0.25, 0.93, 0.94)
    assert (measured["async"]["age_max"], measured["sync"]["trained"]) == (4, 5120)


@pytest.mark.parametrize(
    ("seconds", "reward", "verdict"),
    [
        (50.0, 0.94, "async: 0.250 of the time in turns, reward +0.010 (target 0.5 at +-0.03: reached)"),
        (50.0, 0.85, "async: 0.250 of the time in turns, reward -0.080 (target 0.5 at +-0.03: missed)"),
        (150.0, 0.93, "async: 0.750 of the time in turns, reward +0.000 (target 0.5 at +-0.03: missed)"),
    ],
)
def test_the_table_says_whether_the_target_is_reached(seconds, reward, verdict) -> None:
    assert AsyncReport("async", "a setup", SYNC, side(seconds, reward)).table().endswith(verdict)


def test_a_few_samples_take_twenty_times_as_long(tmp_path) -> None:
    tiny = make_tiny(tmp_path / "tiny", "sort", num_train=2000, num_heldout=4, num_demos=4)
    add_times(tiny, 0.5, 50)
    prompts = [json.loads(line) for line in tiny.train.read_text().splitlines()]
    times = [seconds for prompt in prompts for seconds in prompt["metadata"]["seconds"]]
    assert len(times) == 2000 * 8
    assert median(times) == pytest.approx(0.5, rel=0.05)
    assert times.count(0.5 * SLOWER) / len(times) == pytest.approx(1 / 50, rel=0.2)
    assert max(time for time in times if time < 0.5 * SLOWER) < 3


def test_outside_of_a_checkout_nothing_begins(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkout, "CHECKOUT", tmp_path)
    with pytest.raises(RolloutError, match=r"has no train.py: slime runs from a checkout.*scripts/install.sh"):
        run(argparse.Namespace(), [], Console(io.StringIO()))


def test_a_run_that_fails_says_why(tmp_path) -> None:
    with pytest.raises(RolloutError, match=r"train.py --num-epoch 1 ended with 2:(.|\n)*--rm-type: is missing"):
        train(tmp_path / "run", ["--num-epoch", "1"])
