"""What is told to the recorder reaches metrics.jsonl, timeline, samples and console, whole or not at all."""

import io
import json
import time
from types import SimpleNamespace

import pytest

from slime.data.sample import Sample
from slime.observe import Console, Recorder, RunDir, print_summary, read_metrics


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run")


@pytest.fixture
def recorder(run):
    with Recorder(run, Console(io.StringIO())) as recorder:
        yield recorder


def spans(run):
    """(name, rollout) of what began, in the order of its beginning."""
    events = [event for event in json.loads(run.timeline_file.read_text()) if event["ph"] in "BX"]
    return [(event["name"], event["args"]) for event in sorted(events, key=lambda event: event["ts"])]


def test_step_is_a_row_of_its_rollout_and_one_of_each_optimizer_step(run, recorder):
    for rollout_id in range(2):
        with recorder.step(rollout_id) as step:
            step.add({"rollout/raw_reward": 0.5, "rollout/advantages": 0.0})
            with step.clock("train"):
                pass
            step.add({"perf/update_weights_time": 0.25}, [{"train/loss": 1.0}, {"train/loss": 2.0}])
    rows = read_metrics(run.path)
    assert [row.get("rollout/step", row.get("train/step")) for row in rows] == [0, 0, 1, 1, 2, 3]
    assert rows[3]["rollout/raw_reward"] == 0.5 and rows[3]["perf/update_weights_time"] == 0.25
    assert 0 <= rows[3]["perf/train_time"] <= rows[3]["perf/step_time"]
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [1.0, 2.0, 1.0, 2.0]
    assert "   1  0.500" in recorder.console.terminal.stream.getvalue()


def test_where_trackers_write_is_said(run):
    console = Console(io.StringIO())
    tracker = SimpleNamespace(name="TensorBoard", place="/somewhere", close=lambda: None)
    with Recorder(run, console, [tracker]):
        assert console.terminal.stream.getvalue() == "TensorBoard: /somewhere\n"


def test_share_of_waiting_is_of_waiting_and_training(run, recorder):
    with recorder.step(0) as step:
        step.add({"perf/train_wait_time": 3.0, "perf/train_time": 1.0})
    assert read_metrics(run.path)[0]["perf/wait_time_ratio"] == 0.75


def test_a_time_that_is_taken_twice_adds_up_also_after_it_was_written(run, recorder):
    with recorder.step(0) as step:
        for _ in range(2):
            with step.clock("train_wait"):
                time.sleep(0.05)
            step.write()
    first, second, _ = (row.get("perf/train_wait_time") for row in read_metrics(run.path))
    assert 0.05 <= first and first + 0.05 <= second


def test_times_of_other_processes_stand_in_their_order_before_now(run, recorder):
    with recorder.step(7) as step:
        step.add({"perf/update_weights_time": 0.5, "perf/wake_up_time": 0.25, "perf/rollout_time": 9.0})
    wake_up, update_weights = [
        event for event in json.loads(run.timeline_file.read_text()) if event["name"] in ("wake_up", "update_weights")
    ][::-1]
    assert (wake_up["dur"], update_weights["dur"]) == (250_000, 500_000)
    assert wake_up["ts"] + wake_up["dur"] == pytest.approx(update_weights["ts"], abs=2)
    assert update_weights["args"] == {"rollout_id": 7}


def test_what_a_checkpoint_counts_as_done_is_written_before_and_only_once(run, recorder):
    with recorder.step(3) as step:
        step.add(
            {"rollout/raw_reward": 0.5}, [{"train/loss": 1.0, "train/step": 6}, {"train/loss": 2.0, "train/step": 7}]
        )
        step.write()
        at_the_save = read_metrics(run.path)
        step.add({"perf/update_weights_time": 0.25})
    assert [(row.get("rollout/raw_reward"), row.get("train/loss")) for row in at_the_save] == [
        (0.5, None),
        (None, 1.0),
        (None, 2.0),
    ]
    (rest,) = read_metrics(run.path)[3:]
    assert (
        rest.keys() == {"time", "rollout/step", "perf/update_weights_time", "perf/step_time"}
        and rest["rollout/step"] == 3
    )


def test_step_that_fails_leaves_its_spans_alone(run, recorder):
    with pytest.raises(ValueError), recorder.step(0) as step, step.clock("train"):
        raise ValueError
    assert read_metrics(run.path) == []
    assert spans(run) == [("step", {"rollout_id": 0}), ("train", {"rollout_id": 0})]


def test_evaluation_is_logged_and_its_transcripts_kept(run, recorder):
    recorder.eval(20, lambda step: ({"eval/col": 0.75}, {"col": [Sample(prompt="1+1=", response="2", reward=1.0)]}))
    assert [(row["eval/step"], row["eval/col"]) for row in read_metrics(run.path)] == [(20, 0.75)]
    assert run.read_samples()[20][0]["response"] == "2"
    assert "held out: col" in recorder.console.terminal.stream.getvalue()
    assert spans(run) == [("eval", {"step": 20})]


def test_rewards_that_were_not_had_are_said_at_first_and_when_they_have_doubled(run, recorder):
    for rollout_id, failures in enumerate((0, 1, 0, 1, 1, 1)):
        with recorder.step(rollout_id) as step:
            step.add({"rollout/reward_failures": failures})
    output = recorder.console.terminal.stream.getvalue()
    told = [line for line in output.splitlines() if "rewards were not had" in line]
    assert [line.split("up to ")[1].split(" rewards")[0] for line in told] == [
        "rollout 1, 1",
        "rollout 3, 2",
        "rollout 5, 4",
    ]
    print_summary(run, recorder.console.terminal.stream)
    assert "4 were not had" in recorder.console.terminal.stream.getvalue()


def test_engines_that_run_another_model_are_doubted_once(run, recorder):
    for rollout_id, difference in enumerate((0.01, 0.3, 0.4)):
        with recorder.step(rollout_id) as step:
            step.add({}, [{"train/train_rollout_logprob_abs_diff": difference}])
    output = recorder.console.terminal.stream.getvalue()
    assert output.count("do not run the same weights") == 1
    assert "rollout 1: " in output and "differ by 0.3" in output
