"""timeline.json: complete trace-event JSON at every moment."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest

from slime.observe import RunDir, Timeline


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run")


def events(run, *phases):
    return [event for event in json.loads(run.timeline_file.read_text()) if event["ph"] in phases]


def test_span_begins_and_ends_in_its_row(run):
    timeline = Timeline(run)
    with timeline.span("train", rollout_id=3):
        assert [event["ph"] for event in events(run, "B", "E")] == ["B"], "what goes on is in the file already"
    begin, end = events(run, "B", "E")
    assert begin["name"] == "train" and begin["args"] == {"rollout_id": 3}
    assert (begin["pid"], begin["tid"]) == (end["pid"], end["tid"])
    assert begin["ts"] <= end["ts"]


def test_rows_are_named_once_and_apart(run):
    timeline = Timeline(run)
    for _ in range(2):
        with timeline.span("rollout"), timeline.span("train"), timeline.span("train", process="trainer-0"):
            pass
    rows = {event["args"]["name"]: event for event in events(run, "M") if event["name"] == "process_name"}
    assert {name: event["pid"] for name, event in rows.items()} == {"driver": 0, "trainer-0": 1}
    threads = [
        (event["pid"], event["tid"], event["args"]["name"])
        for event in events(run, "M")
        if event["name"] == "thread_name"
    ]
    assert len(threads) == len(set(threads)) == 4
    begun = {(event["name"], event["pid"], event["tid"]) for event in events(run, "B")}
    assert begun == {(name, pid, tid) for pid, tid, name in threads if name != "run"}


def test_span_that_raises_is_closed_with_its_error(run):
    timeline = Timeline(run)
    with pytest.raises(KeyError), timeline.span("eval"):
        raise KeyError
    assert [event["args"] for event in events(run, "E")] == [{"error": "KeyError"}]


def test_span_measured_elsewhere(run):
    Timeline(run).add("log_probs", 100.0, 100.25, process="trainer-1", rank=1)
    [event] = events(run, "X")
    assert (event["ts"], event["dur"], event["args"]) == (100_000_000, 250_000, {"rank": 1})


def test_resumed_run_goes_on_in_the_same_file(run):
    for rollout_id in range(2):
        timeline = Timeline(run)
        with timeline.span("train", rollout_id=rollout_id):
            pass
        timeline.close()
    assert [event["args"] for event in events(run, "B")] == [{"rollout_id": 0}, {"rollout_id": 1}]


def test_killed_run_leaves_json_that_shows_what_it_was_doing(run):
    spans_forever = textwrap.dedent("""
        import sys, time
        from slime.observe import RunDir, Timeline
        timeline = Timeline(RunDir.open(sys.argv[1]))
        for i in range(100):
            with timeline.span("rollout", rollout_id=i):
                pass
        with timeline.span("update_weights", rollout_id=100):
            print("stuck", flush=True)
            time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", spans_forever, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    begun, ended = events(run, "B"), events(run, "E")
    assert len(begun) == 101 and len(ended) == 100
    assert begun[-1]["name"] == "update_weights"
