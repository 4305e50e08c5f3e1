"""The bench of returns, on few tokens: that it computes on both sides what it compares."""

from __future__ import annotations

import argparse
import json
import sys

import pytest

from slime.bench import returns
from slime.config import ConfigError
from slime.observe.console import Console


@pytest.fixture(scope="module")
def report() -> returns.ReturnsReport:
    parser = argparse.ArgumentParser()
    returns.add_arguments(parser)
    args = parser.parse_args(["--samples", "3", "--tokens", "700", "--loop-tokens", "300"])
    return returns.run(args, [], Console(sys.stderr))


def test_both_sides_compute_the_same(report):
    assert 0 < report.difference < 1e-4


def test_the_line_has_its_headlines(report):
    measured = json.loads(report.line())
    assert measured["bench"] == "returns"
    assert measured["ratio"] == pytest.approx(measured["seconds_gae"] / measured["seconds_loop"])
    assert report.table().startswith("3 samples of 700 response tokens")


def test_options_of_the_configuration_are_refused():
    with pytest.raises(ConfigError, match="--lr: is no option of this bench"):
        returns.run(argparse.Namespace(), ["--lr", "1"], Console(sys.stderr))
