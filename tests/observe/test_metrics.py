"""metrics.jsonl: every row of it survives, whatever happens to the process, the trackers or the numbers."""

import json
import math
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.observe import Metrics, MetricsError, RunDir, read_metrics


class Refuses:
    """A tracker whose network is down."""

    name = "Refuses"

    def log(self, metrics, *, step, axes):
        raise ConnectionError("no route to host")

    def close(self):
        raise TimeoutError("still no route")


class Remembers:
    name = "Remembers"

    def __init__(self):
        self.rows = []

    def log(self, metrics, *, step, axes):
        self.rows.append((metrics, step, axes))

    def close(self):
        self.rows.append("closed")


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run")


@pytest.fixture
def said():
    return []


def logged(run):
    return [{name: value for name, value in row.items() if name != "time"} for row in read_metrics(run.path)]


def test_row_holds_the_step_of_its_axis(run):
    metrics = Metrics(run)
    metrics.log({"rollout/raw_reward": 0.25, "perf/rollout_time": 1.5}, step=3)
    metrics.log({"train/loss": -0.1}, step=12)
    metrics.log({"eval/col": 0.5}, step=4)
    metrics.log({"mine": 7}, step=3)
    assert logged(run) == [
        {"rollout/raw_reward": 0.25, "perf/rollout_time": 1.5, "rollout/step": 3},
        {"train/loss": -0.1, "train/step": 12},
        {"eval/col": 0.5, "eval/step": 4},
        {"mine": 7, "rollout/step": 3},
    ]


def test_user_metrics_go_with_the_axis_of_their_row(run):
    Metrics(run).log({"train/loss": 1.0, "my/entropy": 2.0}, step=5)
    assert logged(run) == [{"train/loss": 1.0, "my/entropy": 2.0, "train/step": 5}]


def test_scalars_of_numpy_and_torch_are_numbers(run):
    torch = pytest.importorskip("torch")
    row = {"a": np.float32(0.5), "b": np.array([2]), "c": torch.tensor(3.0), "d": True, "e": np.int64(4)}
    Metrics(run).log(row, step=0)
    assert logged(run) == [{"a": 0.5, "b": 2, "c": 3.0, "d": 1, "e": 4, "rollout/step": 0}]


@pytest.mark.parametrize("value", ["text", None, [1, 2], np.zeros(2), {"mean": 1}])
def test_what_is_no_number_is_left_out_and_said_once(run, said, value):
    metrics = Metrics(run, warn=said.append)
    metrics.log({"my/thing": value, "my/other": 1}, step=0)
    metrics.log({"my/thing": value, "my/other": 1}, step=1)
    assert logged(run) == [{"my/other": 1, "rollout/step": 0}, {"my/other": 1, "rollout/step": 1}]
    assert len(said) == 1 and "my/thing is left out" in said[0]


@given(st.dictionaries(st.sampled_from(["my/a", "my/b", "c"]), st.floats() | st.integers(-(2**60), 2**60)))
def test_any_number_comes_back(tmp_path_factory, numbers):
    run = RunDir.create(tmp_path_factory.mktemp("run"))
    Metrics(run).log(numbers, step=0)
    [row] = logged(run)
    row.pop("rollout/step")
    assert row.keys() == numbers.keys()
    assert all(row[name] == value or (math.isnan(row[name]) and math.isnan(value)) for name, value in numbers.items())


def test_file_is_strict_json_also_for_what_is_not_finite(run):
    Metrics(run).log({"train/loss": math.nan, "train/grad_norm": math.inf, "train/ppo_kl": -math.inf}, step=0)
    refuse = pytest.fail
    row = json.loads(run.metrics_file.read_text(), parse_constant=refuse)
    assert (row["train/loss"], row["train/grad_norm"], row["train/ppo_kl"]) == ("NaN", "Infinity", "-Infinity")


def test_undocumented_name_under_our_prefix_is_said_once(run, said):
    metrics = Metrics(run, warn=said.append)
    for step in range(2):
        metrics.log({"train/pg_lose": 0.0, "my/own": 1.0}, step=step)
    assert said == ["the metric train/pg_lose is not in docs/metrics.md: add it to slime/observe/names.py"]
    assert [row["train/pg_lose"] for row in logged(run)] == [0.0, 0.0]


def test_undocumented_name_is_an_error_where_warnings_are(run):
    with pytest.warns(UserWarning, match="train/pg_lose is not in docs/metrics.md"):
        Metrics(run).log({"train/pg_lose": 0.0}, step=0)


def test_step_that_contradicts_its_metric_is_said(run, said):
    Metrics(run, warn=said.append).log({"train/step": 7, "train/loss": 0.0}, step=3)
    assert said == ["train/step is 7 among the metrics of a row at step 3: 3 is kept"]
    assert logged(run) == [{"train/step": 3, "train/loss": 0.0}]


def test_tracker_that_fails_is_counted_and_said_once_and_stops_nothing(run, said):
    well = Remembers()
    metrics = Metrics(run, [Refuses(), well], warn=said.append)
    for step in range(3):
        metrics.log({"train/loss": 1.0}, step=step)
    assert metrics.failures == {"Refuses": 3, "Remembers": 0}
    assert said == [
        "Refuses failed at step 0; the run goes on, and metrics.jsonl has everything: ConnectionError: no route to host"
    ]
    metrics.close()
    assert said[1:] == [
        "Refuses failed while closing: TimeoutError: still no route",
        "Refuses lost 3 rows; metrics.jsonl has them",
    ]
    assert well.rows == [({"train/loss": 1.0}, step, ("train/step",)) for step in range(3)] + ["closed"]
    assert len(logged(run)) == 3


def test_killed_process_leaves_every_row_it_logged(run):
    log_forever = textwrap.dedent("""
        import sys
        from itertools import count
        from slime.observe import Metrics, RunDir
        metrics = Metrics(RunDir.open(sys.argv[1]))
        for step in count():
            metrics.log({"train/loss": 1 / (1 + step)}, step=step)
            print(step, flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", log_forever, str(run.path)], stdout=subprocess.PIPE, text=True)
    while (last_said := int(process.stdout.readline())) < 100:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    steps = [row["train/step"] for row in read_metrics(run.path)]
    assert steps == list(range(len(steps))) and len(steps) > last_said
    Metrics(run).log({"train/loss": 0.0}, step=-1)
    assert [row["train/step"] for row in read_metrics(run.path)] == [*steps, -1]


def test_half_a_last_line_is_passed_over(run):
    run.metrics_file.write_text('{"rollout/step": 0}\n{"rollout/st')
    assert read_metrics(run.metrics_file) == [{"rollout/step": 0}]


@pytest.mark.parametrize("line", ["{half", "[1]", '{"a": "word"}', ""])
def test_damaged_line_is_named(run, line):
    run.metrics_file.write_text(f'{{"rollout/step": 0}}\n{line}\n{{"rollout/step": 1}}\n')
    with pytest.raises(MetricsError, match=r"metrics\.jsonl:2: not a row of metrics"):
        read_metrics(run.path)
