"""The run directory: claimed once, written whole, and clear about what is wrong with it."""

import json
import subprocess
import sys
import textwrap

import pytest

from slime.config import load
from slime.data.sample import Sample, Status
from slime.observe import RunDir, RunDirError, print_summary
from slime.observe.run_dir import TRANSCRIPTS_A_SET, LineFile, unusable_run_dir


class WritesYaml:
    def __init__(self, text):
        self.text = text

    def write_yaml(self, path):
        path.write_text(self.text)


class DiesHalfWay:
    def write_yaml(self, path):
        path.write_text("half a confi")
        raise KeyboardInterrupt


def sample(i, response="4"):
    reward = float(response == str(i + 1))
    return Sample(
        prompt=f"{i}+1=", response=response, response_length=1, label=i + 1, reward=reward, status=Status.COMPLETED
    )


def test_new_run_has_its_places(tmp_path):
    run = RunDir.create(tmp_path / "runs" / "first")
    assert run.logs.is_dir() and run.samples.is_dir() and run.metrics_file.read_text() == ""
    assert run.log_file("engine-0") == tmp_path / "runs" / "first" / "logs" / "engine-0.log"


def test_latest_is_the_newest_run_that_has_begun(tmp_path):
    latest = tmp_path / "runs" / "latest"
    for name in ("first", "second"):
        RunDir.create(tmp_path / "runs" / name).point_latest()
    RunDir.create(tmp_path / "runs" / "fails")
    assert latest.readlink().as_posix() == "second"
    assert RunDir.open(latest).path == tmp_path / "runs" / "second"


def test_directory_that_holds_a_run_is_refused_unless_resuming(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.metrics_file.write_text('{"rollout/step": 0}\n')
    with pytest.raises(RunDirError, match="already holds a run"):
        RunDir.create(tmp_path / "run")
    run.release()
    assert RunDir.create(tmp_path / "run", resume=True).metrics_file.read_text() == '{"rollout/step": 0}\n'


def test_a_run_that_is_running_is_not_gone_on_with(tmp_path):
    """By nobody else, until its process has ended, however that came."""
    holds = f"from slime.observe import RunDir; run = RunDir.create({str(tmp_path / 'run')!r}); print('held'); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunDirError, match=rf"is a run that is still running \(pid {other.pid} on .*\): end it"):
            RunDir.create(tmp_path / "run", resume=True)
        other.kill()
    RunDir.create(tmp_path / "run", resume=True)


def test_a_check_refuses_what_a_start_would_and_makes_nothing(tmp_path):
    def said(name, *options):
        words = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--run-dir", str(tmp_path / name), *options]
        return unusable_run_dir(load(words))

    assert said("run") == [] and not (tmp_path / "run").exists()
    RunDir.create(tmp_path / "run").metrics_file.write_text("{}\n")
    ((option, what),) = said("run")
    assert option == "--run-dir" and "already holds a run" in what
    assert said("run", "--load", "checkpoints") == []
    assert "cannot be called 'latest'" in said("latest")[0][1]


def test_directory_with_other_files_is_refused_and_left_as_it_is(tmp_path):
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    with pytest.raises(RunDirError, match=r"holds something else \(notes.txt\): name a new directory"):
        RunDir.create(directory)
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


def test_directory_into_which_a_launcher_or_the_trackers_of_a_failed_start_wrote_is_taken(tmp_path):
    for name in ("logs", "tensorboard", "wandb"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "a.log").touch()
    assert RunDir.create(tmp_path / "run").metrics_file.exists()


def test_a_run_that_was_killed_before_its_first_step_can_be_started_again(tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("metrics.jsonl", "config.yaml", "ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "run" / name).touch()
    assert RunDir.create(tmp_path / "run").metrics_file.exists()


def test_several_processes_cannot_claim_one_directory(tmp_path):
    claim = textwrap.dedent("""
        import sys
        from slime.observe import RunDir, RunDirError, print_summary
        sys.stdin.readline()
        try:
            run = RunDir.create(sys.argv[1])
            print("claimed", flush=True)
            sys.stdin.readline()  # holds it
        except RunDirError as e:
            print("refused" if "already holds a run" in str(e) or "is still running" in str(e) else e)
    """)
    command = [sys.executable, "-c", claim, str(tmp_path / "run")]
    starts = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for start in starts:
        start.stdin.write("go\n")
        start.stdin.flush()
    said = sorted(start.stdout.readline().strip() for start in starts)
    for start in starts:
        start.communicate(timeout=60)
    assert said == ["claimed", "refused", "refused", "refused"]


def test_latest_is_no_name_for_a_run(tmp_path):
    with pytest.raises(RunDirError, match="cannot be called 'latest'"):
        RunDir.create(tmp_path / "latest")


def test_somebody_elses_link_called_latest_is_left_alone(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "latest").symlink_to("data")
    with pytest.raises(
        RunDirError, match="latest should be a link to the newest run, but it leads to data, which holds"
    ):
        RunDir.create(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "data").rmdir()  # as that of a run that was removed
    RunDir.create(tmp_path / "run").point_latest()
    assert (tmp_path / "latest").readlink().name == "run"


def test_a_run_that_had_nothing_to_do_is_no_bar_to_the_next(tmp_path):
    first = RunDir.create(tmp_path / "first")
    first.point_latest()
    first.release()
    RunDir.create(tmp_path / "second").point_latest()
    assert (tmp_path / "latest").readlink().name == "second"


def test_something_else_called_latest_is_left_alone(tmp_path):
    (tmp_path / "latest").mkdir()
    with pytest.raises(RunDirError, match="move it away"):
        RunDir.create(tmp_path / "run")


def test_path_through_a_file_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="a part of this path is a file"):
        RunDir.create(tmp_path / "file" / "run")


def test_open_names_the_runs_that_are_there(tmp_path):
    RunDir.create(tmp_path / "good")
    with pytest.raises(RunDirError, match=r"holds no run: .* holds good"):
        RunDir.open(tmp_path / "god")


def test_a_run_that_died_before_it_measured_anything_can_be_opened(tmp_path, capsys):
    run = RunDir.create(tmp_path / "run")
    run.ledger_file.touch()
    run.release()
    assert not run.metrics_file.exists()
    print_summary(RunDir.open(tmp_path / "run"))
    assert "0 steps" in capsys.readouterr().out


def test_config_is_replaced_whole_or_not_at_all(tmp_path):
    run = RunDir.create(tmp_path / "run")
    assert run.read_config() == {}
    run.save_config(WritesYaml("data:\n  num_rollout: 40\n"))
    with pytest.raises(KeyboardInterrupt):
        run.save_config(DiesHalfWay())
    assert run.read_config() == {"data": {"num_rollout": 40}}
    assert sorted(path.name for path in run.path.iterdir()) == [
        *(".lock", "config.yaml", "logs", "metrics.jsonl", "samples")
    ]


def test_transcripts_come_back_in_the_order_of_the_set(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.write_samples(0, {"sums": map(sample, range(100))})
    run.write_samples(20, {"sums": map(sample, range(100))})
    kept = run.read_samples()
    assert list(kept) == [0, 20]
    assert [row["prompt"] for row in kept[20]] == [f"{i}+1=" for i in range(TRANSCRIPTS_A_SET)]
    assert kept[0][3] == {
        "set": "sums",
        "prompt": "3+1=",
        "response": "4",
        "response_length": 1,
        "label": 4,
        "reward": 1.0,
        "status": "completed",
    }


def test_transcripts_keep_any_text(tmp_path):
    run = RunDir.create(tmp_path / "run")
    text = "two\nlines \x1b[31m 数学 \u2028 and a half \ud83d"
    run.write_samples(0, {"sums": [sample(0, text)]})
    assert run.read_samples()[0][0]["response"] == "two\nlines \x1b[31m 数学 \u2028 and a half ?"


@pytest.mark.parametrize("left", ["", '{"a": 1}\n', '{"a": 1}\n{"a": 2', "{"])
def test_half_a_line_is_cut_off_before_the_next_is_written(tmp_path, left):
    path = tmp_path / "lines"
    path.write_text(left)
    lines = LineFile(path)
    lines.append('{"a": 3}')
    lines.close()
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] in ([3], [1, 3])


def test_tail_follows_the_last_line_at_any_moment(tmp_path):
    path = tmp_path / "array"
    for value in (1, 2):  # the second time around, the file is there already
        lines = LineFile(path, tail="]\n")
        lines.append("[1" if value == 1 else ",2")
        lines.close()
        assert json.loads(path.read_text()) == [1, 2][:value]


def test_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(tmp_path):
    """A limit on the file's size makes the system write a part and then refuse, as a full disk does."""
    path = tmp_path / "lines"
    write = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from slime.observe.run_dir import LineFile, RunDirError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        lines = LineFile(Path(sys.argv[1]))
        lines.append("x" * 99)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
        try:
            lines.append("y" * 99)
        except RunDirError as e:
            print(e)
    """)
    said = subprocess.run(
        [sys.executable, "-c", write, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == f"cannot append to {path}: the limit on the size of a file is reached (ulimit -f): raise it\n"
    assert path.read_text() == "x" * 99 + "\n"


@pytest.mark.parametrize("limit", [0, 100], ids=["at once", "at its configuration"])
def test_a_run_that_does_not_fit_on_the_disk_can_be_started_once_there_is_room(tmp_path, limit):
    path = tmp_path / "run"
    make = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from slime.observe.run_dir import RunDir, RunDirError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
        class Config:
            def write_yaml(self, path):
                Path(path).write_text("x" * 200)
        try:
            with RunDir.create(sys.argv[1]) as run:
                run.save_config(Config())
        except RunDirError as e:
            print(e)
    """)
    said = subprocess.run(
        [sys.executable, "-c", make, str(path), str(limit)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "the limit on the size of a file is reached" in said.stdout
    RunDir.create(path)


def test_a_start_that_measured_nothing_frees_the_name_of_its_run(tmp_path):
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), RunDir.create(tmp_path / "run"):
            raise error
    with RunDir.create(tmp_path / "run") as run:
        metrics = LineFile(run.metrics_file)
        metrics.append("{}")
        metrics.close()
    with pytest.raises(RunDirError, match="already holds a run"):
        RunDir.create(tmp_path / "run")


def test_who_is_refused_a_run_leaves_its_empty_file(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for resume in (False, True):
            with pytest.raises(RunDirError, match="is still running"):
                RunDir.create(tmp_path / "run", resume=resume)
        assert run.metrics_file.exists()
    assert not run.metrics_file.exists()
