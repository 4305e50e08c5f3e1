"""TensorBoard and Weights & Biases: what was logged is read back from their own files."""

import math
import os
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest

from slime.observe import Metrics, RunDir, TrackerError, make_trackers, trackers

NONE = {
    "use_tensorboard": False,
    "tb_project_name": None,
    "tb_experiment_name": None,
    "use_wandb": False,
    "wandb_mode": "offline",
    "wandb_dir": None,
    "wandb_key": None,
    "wandb_host": None,
    "wandb_team": None,
    "wandb_group": "tiny",
    "wandb_project": "slime-tests",
    "wandb_run_id": "abc123",
    "disable_wandb_random_suffix": True,
    "wandb_always_use_train_step": False,
    "num_steps_per_rollout": 4,
}


def options(**given):
    return SimpleNamespace(**NONE | given)


class WritesYaml:
    def write_yaml(self, path):
        path.write_text("data:\n  num_rollout: 40\n")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    run = RunDir.create(tmp_path / "run")
    run.save_config(WritesYaml())
    return run


def log_three_rows(run, chosen, warn=pytest.fail):
    metrics = Metrics(run, chosen, warn=warn)
    metrics.log({"train/loss": 0.5, "train/grad_norm": math.nan}, step=12)
    metrics.log({"rollout/raw_reward": 0.25}, step=3)
    metrics.log({"eval/col": 0.75}, step=4)
    metrics.close()


def test_nothing_is_imported_unless_asked_for(run):
    assert make_trackers(options(), run) == []
    heavy = ["torch", "ray", "numpy", "wandb", "tensorboard"]
    imports = f"import sys, slime.observe; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "[]\n"


def read_tensorboard(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(directory)).Reload()
    tags = events.Tags()["tensors"]
    return {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)] for tag in tags
    }


def test_tensorboard_reads_back_what_was_logged(run):
    log_three_rows(run, make_trackers(options(use_tensorboard=True), run))
    read = read_tensorboard(run.path / "tensorboard")
    [(step, grad_norm)] = read.pop("train/grad_norm")
    assert step == 12 and math.isnan(grad_norm)
    assert read == {"train/loss": [(12, 0.5)], "rollout/raw_reward": [(3, 0.25)], "eval/col": [(4, 0.75)]}


@pytest.mark.parametrize("shared", [False, True])
def test_tensorboard_directory_follows_project_and_experiment(run, tmp_path, monkeypatch, shared):
    if shared:
        monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "boards"))
    log_three_rows(
        run,
        make_trackers(options(use_tensorboard=True, tb_project_name="p", tb_experiment_name="e"), run),
    )
    base = tmp_path / "boards" if shared else run.path / "tensorboard"
    assert read_tensorboard(base / "p" / "e")["train/loss"] == [(12, 0.5)]


def test_tensorboard_needs_no_torch(run):
    write = (
        "import sys; from pathlib import Path; from slime.observe.trackers import TensorBoard\n"
        "board = TensorBoard(Path(sys.argv[1]))\n"
        "board.log({'train/loss': 0.5}, step=0, axes=('train/step',)); board.close()\n"
        "print([m for m in ('torch', 'tensorflow') if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", write, str(run.path / "tb")], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "[]\n"


@pytest.mark.parametrize(("option", "package"), [("use_tensorboard", "tensorboard"), ("use_wandb", "wandb")])
def test_missing_package_is_said_with_what_to_install(run, monkeypatch, option, package):
    for module in [name for name in sys.modules if name.split(".")[0] == package] + [package, f"{package}.summary"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TrackerError, match=f"--{option.replace('_', '-')} needs the package {package}.*pip install"):
        make_trackers(options(**{option: True}), run)


@pytest.mark.parametrize("option", ["use_tensorboard", "use_wandb"])
def test_directory_that_cannot_be_made_is_said_with_its_option(run, tmp_path, monkeypatch, option):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "file" / "tb"))
    given = {option: True, "wandb_dir": str(tmp_path / "file" / "wandb")}
    with pytest.raises(TrackerError, match=f"--{option.replace('_', '-')}: cannot write to .*: Not a directory"):
        make_trackers(options(**given), run)


# -- Weights & Biases. An offline run is a LevelDB log of protobuf records; W&B has no reader of it for Python.

BLOCK, HEADER, FULL, FIRST, LAST = 32768, 7, 1, 2, 4


def wandb_records(file):
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    position, parts = HEADER, []
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:  # too short for a header: padding
            position += BLOCK - position % BLOCK
            continue
        _checksum, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        parts = [*([] if kind in (FULL, FIRST) else parts), data[position + HEADER : position + HEADER + length]]
        position += HEADER + length
        if kind in (FULL, LAST):
            yield Record.FromString(b"".join(parts))


RUN_WANDB = """
import sys
from types import SimpleNamespace
from pathlib import Path
from slime.observe import RunDir, make_trackers
from tests.observe.test_trackers import log_three_rows, options
given = eval(sys.argv[2], {"__builtins__": {}}, {"dict": dict})
run = RunDir.open(sys.argv[1])
[wandb] = chosen = make_trackers(options(use_wandb=True, **given), run)
log_three_rows(run, chosen, warn=sys.exit)
print(wandb.place)
"""


def run_wandb(run, *arguments, **given):
    """In a process of its own: W&B starts a service beside the process, and records its command line."""
    command = [sys.executable, "-c", RUN_WANDB, str(run.path), repr(given), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    said = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env)
    assert said.returncode == 0, said.stderr
    return said


def history(directory):
    import json

    [file] = directory.glob("wandb/offline-run-*/run-abc123.wandb")
    rows = [record.history for record in wandb_records(file) if record.HasField("history")]
    read = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in read]


def test_wandb_offline_run_holds_what_was_logged(run):
    said = run_wandb(run)
    first, *others = history(run.path)
    assert first["train/loss"] == 0.5 and first["train/step"] == 12
    assert others == [{"rollout/raw_reward": 0.25, "rollout/step": 3}, {"eval/col": 0.75, "eval/step": 4}]
    assert said.stdout.strip().startswith(str(run.path / "wandb")) and said.stderr == ""


def test_wandb_has_the_axes_the_configuration_and_the_names(run):
    run_wandb(run)
    [file] = run.path.glob("wandb/offline-run-*/run-abc123.wandb")
    records = list(wandb_records(file))
    [started] = [record.run for record in records if record.HasField("run")][:1]
    assert (started.run_id, started.project, started.run_group, started.display_name) == (
        "abc123",
        "slime-tests",
        "tiny",
        "tiny",
    )
    config = {item.key: item.value_json for item in started.config.update}
    assert config["data"] == '{"num_rollout":40}'
    axes = {r.metric.glob_name: r.metric.step_metric for r in records if r.HasField("metric") and r.metric.glob_name}
    assert axes == {
        "train/*": "train/step",
        "critic-train/*": "critic-train/step",
        "eval/*": "eval/step",
        **{
            f"{prefix}/*": "rollout/step"
            for prefix in ("rollout", "perf", "passrate", "multi_turn", "multi_turn_metric")
        },
    }


def test_wandb_can_put_everything_on_the_train_step(run):
    run_wandb(run, wandb_always_use_train_step=True)
    rows = history(run.path)
    assert [rows[0]["train/step"], rows[1]["rollout/step"], rows[2]["eval/step"]] == [12, 12, 16]


def test_wandb_key_of_the_command_line_is_not_uploaded(run, tmp_path):
    key = "0123456789abcdef0123456789abcdef01234567"
    run_wandb(run, f"--wandb-key={key}", wandb_key=key, wandb_dir=str(tmp_path / "elsewhere"))
    files = [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert not [path for path in files if key.encode() in path.read_bytes()]


def test_wandb_that_cannot_be_reached_says_how_to_do_without(run, monkeypatch):
    monkeypatch.setattr(trackers, "_imported", lambda *_: pytest.importorskip("wandb"))
    with pytest.raises(TrackerError, match=r"--use-wandb: .*--wandb-mode offline"):
        make_trackers(options(use_wandb=True, wandb_mode="online", wandb_key="too-short"), run)
