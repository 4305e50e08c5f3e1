"""Where a run is going to write: whether it could, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime.config import load, places
from slime.config.checkpoint_dir import name_of


def said(*options: str) -> list[str]:
    config = load(["--hf-checkpoint", "model", "--rollout-batch-size", "4", *options])
    return [str(problem) for problem in places.look(config, set())]


def test_what_can_be_made_is_fine_and_not_made(tmp_path):
    directory = str(tmp_path / "a" / "b")
    options = ["--save", directory, "--save-hf", f"{directory}/{{rollout_id}}", "--run-dir", directory]
    assert said(*options, "--dump-details", directory) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--save", "--save-hf", "--run-dir"])
@pytest.mark.parametrize("below", ["", "/x", "/{rollout_id}"])
def test_a_file_in_the_way_is_said(tmp_path, option, below):
    file = tmp_path / "README.md"
    file.touch()
    (problem,) = said(option, f"{file}{below}")
    assert problem.startswith(f"{option}: {file}{below} cannot be written: {file} is no directory")


def test_a_file_system_that_takes_no_files_is_said():
    (problem,) = said("--save-hf", "/proc/x/{rollout_id}")
    assert "/proc/x/{rollout_id} cannot be written: /proc: " in problem


def test_a_recording_is_written_beside_others(tmp_path):
    assert said("--save-debug-rollout-data", str(tmp_path / "{rollout_id}.jsonl")) == []
    file = tmp_path / "file"
    file.touch()
    (problem,) = said("--save-debug-rollout-data", f"{file}/{{rollout_id}}.jsonl")
    assert f"{file} is no directory" in problem


def test_a_link_to_nothing_is_no_directory(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert f"{link} is no directory" in said("--save", str(link))[0]
    assert said("--save", str(Path("relative") / "to" / "here")) == []


def test_what_follows_from_another_option_is_said_with_it(tmp_path):
    file = tmp_path / "file"
    file.touch()
    (problem,) = said("--advantage-estimator", "ppo", "--save", str(file))
    assert problem.startswith(f"--save, --critic-save: {file} and {file}/critic cannot be written: {file} is no")


# Checkpoints that are there.


def saved(directory: Path) -> str:
    for rollout_id in (2, 10):
        (directory / name_of(rollout_id)).mkdir(parents=True)
    return str(directory)


def test_checkpoints_that_a_run_does_not_go_on_from_are_not_written_over(tmp_path):
    directory = saved(tmp_path / "saved")
    for options in ([], ["--load", str(tmp_path / "other"), "--allow-fresh-start"]):
        (problem,) = said("--save", directory, *options)
        what = "has checkpoints of another run, up to iter_0000010, which this one would write over"
        assert problem.startswith(f"--save: {directory} {what}") and f"--load {directory}" in problem
    ppo = ["--advantage-estimator", "ppo", "--save", str(tmp_path / "new"), "--critic-save", directory]
    (problem,) = said(*ppo)
    assert problem.startswith("--critic-save: ") and f"--critic-load {directory}" in problem
    assert said(*ppo, "--critic-load", directory) == []


def test_those_that_it_goes_on_from_are(tmp_path, monkeypatch):
    directory = saved(tmp_path / "saved")
    saved(tmp_path / "saved" / "critic")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("saved")
    for load_from in (directory, f"{directory}/", "saved", "link"):
        for further in ([], ["--finetune"], ["--advantage-estimator", "ppo"], ["--ckpt-step", "2"]):
            assert said("--save", directory, "--load", load_from, *further) == []
    assert said("--save", directory, "--debug-rollout-only") == []


def test_weights_alone_are_written_beside(tmp_path):
    (tmp_path / "release").mkdir()
    assert said("--save", str(tmp_path)) == []


def test_an_export_that_would_be_refused_after_the_last_rollout_is_said(tmp_path):
    (tmp_path / "model").mkdir()
    assert said("--save-hf", str(tmp_path / "model")) == []
    (tmp_path / "model" / "notes.txt").touch()
    (problem,) = said("--save-hf", str(tmp_path / "model"))
    assert problem.startswith(f"--save-hf: {tmp_path}/model holds files and no model (config.json)")
    (tmp_path / "model" / "config.json").touch()
    assert said("--save-hf", str(tmp_path / "model")) == []


@pytest.mark.parametrize("template", ["m-1", "./x/../m-1", "m-{rollout_id}"])
@pytest.mark.parametrize(
    "read",
    ["--hf-checkpoint m-1", "--use-kl-loss --ref-load m-1", "--use-opd --opd-type megatron --opd-teacher-load m-1"],
)
def test_an_export_over_a_model_that_is_read_is_said(template, read):
    (problem,) = said(*read.split(), "--save-hf", template)
    assert problem.startswith(f"--save-hf: {template} is where a model of this run comes from, m-1")


def test_an_export_over_another_model_is_said(tmp_path):
    for name, size in {"ours": 64, "theirs": 32}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"hidden_size": size}))
    (problem,) = said("--hf-checkpoint", str(tmp_path / "ours"), "--save-hf", str(tmp_path / "theirs"))
    assert f"--save-hf: {tmp_path}/theirs holds another model, which would be replaced: hidden_size" in problem


def test_an_export_of_a_quantized_model_is_an_earlier_one(tmp_path):
    """It has the same config.json without quantization_config."""
    for name, more in {"ours": {"quantization_config": {"quant_method": "fp8"}}, "export": {}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"hidden_size": 64} | more))
    assert said("--hf-checkpoint", str(tmp_path / "ours"), "--save-hf", str(tmp_path / "export")) == []
