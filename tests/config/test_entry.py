"""The command line as a user has it: help, --check, all problems with status 2, and the launch script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime.config import from_command_line

ROOT = Path(__file__).parents[2]


def ended(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        from_command_line(argv)
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


def test_default_names_of_the_same_second_differ(complete, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = set()
    for _ in range(5):
        config = from_command_line(complete)
        Path(config.run_dir).mkdir(parents=True)
        names.add(config.run_name)
    assert len(names) == 5


def test_a_complete_command_line_gives_a_named_run(complete):
    config = from_command_line(complete)
    assert config.run_name.startswith("tiny-") and config.run_dir == f"runs/{config.run_name}"


def test_a_name_or_a_directory_that_is_given_stays(complete):
    assert from_command_line([*complete, "--run-name", "a"]).run_dir == "runs/a"
    config = from_command_line([*complete, "--run-dir", "/elsewhere/b"])
    assert (config.run_name, config.run_dir) == ("b", "/elsewhere/b")


def test_a_run_has_the_name_of_its_directory_however_that_is_written(complete, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert from_command_line([*complete, "--run-dir", "."]).run_name == "b"
    assert from_command_line([*complete, "--run-dir", ".."]).run_name == "a"
    assert from_command_line([*complete, "--run-dir", "/"]).run_name.startswith("tiny-")


def test_check_prints_the_plan_and_starts_nothing(complete, capsys):
    code, out, err = ended(["--check", *complete], capsys)
    assert (code, err) == (0, "")
    assert "4 prompts x 2 samples = 8 samples" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--check", "x.yaml"], "x.yaml: is no option and belongs to none\n      -> --config x.yaml"),
        (["--check=false"], "--check: takes no value"),
    ],
)
def test_check_takes_no_value(complete, capsys, words, said):
    code, _, err = ended([*complete, *words], capsys)
    assert code == 2 and said in err


def test_a_model_without_weights_can_be_checked_but_not_started(complete, tiny, capsys):
    (tiny / "model.safetensors").unlink()
    code, _, err = ended(["--check", *complete], capsys)
    assert code == 0 and "note: --hf-checkpoint" in err and "has no weights" in err
    code, _, err = ended(complete, capsys)
    assert code == 2 and "has no weights" in err


def test_devices_that_are_not_here_are_a_note_of_the_check_and_an_error_of_a_start(complete, capsys, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    many = [*complete, "--actor-num-gpus-per-node", "8", "--actor-num-nodes", "512", "--rollout-batch-size", "2048"]
    code, _, err = ended([*many, "--check"], capsys)
    assert code == 0 and "4096 devices are asked for in all, this machine has" in err and "RAY_ADDRESS" in err
    code, _, err = ended(many, capsys)
    assert code == 2 and "4096 devices are asked for in all" in err


def test_a_function_that_is_not_there_is_told_with_all_other_mistakes(complete, capsys):
    for check in ([], ["--check"]):
        code, _, err = ended([*complete, *check, "--custom-rm-path", "foo.bar", "--lr", "x"], capsys)
        assert code == 2 and "2 problems" in err and "--custom-rm-path: foo.bar: there is no module 'foo'" in err


def test_what_only_megatron_or_a_later_rollout_would_refuse_is_told_with_all_other_mistakes(complete, capsys):
    wrong = ["--recompute-granularity", "full", "--load-debug-rollout-data", "nowhere/{rollout_id}.jsonl"]
    for check in ([], ["--check"]):
        code, _, err = ended([*complete, *check, *wrong, "--custom-advantage-function-path", "foo.bar"], capsys)
        assert code == 2 and "3 problems" in err
        assert "--recompute-granularity: full recomputes whole layers" in err
        assert "there is no file nowhere/0.jsonl, which rollout 0 trains on, nor those of 2 later ones" in err
        assert "--custom-advantage-function-path: foo.bar: there is no module 'foo'" in err


def test_what_is_missing_wrong_and_not_there_is_told_at_once(capsys):
    code, out, err = ended(["--hf-checkpoint", "nowhere", "--lr", "x", "--rolout-batch-size", "1"], capsys)
    assert (code, out) == (2, "")
    for message in (
        "--lr: 'x' is not a number",
        "did you mean --rollout-batch-size?",
        "--rollout-batch-size: is required",
        "there is no directory nowhere",
        "--num-rollout: is missing",
        "--prompt-data: is missing",
        "--rollout-num-gpus: is missing",
        "--rm-type: is missing",
        "--rollout-max-response-len: is missing",
        "--n-samples-per-prompt: 1 leaves grpo nothing to compare",
    ):
        assert message in err


def test_what_only_some_runs_need_is_not_asked_of_others(complete, capsys):
    sft = [word for word in complete if word not in ("--colocate", "--rm-type", "exact_match")]
    assert from_command_line([*sft, "--loss-type", "sft_loss", "--n-samples-per-prompt", "1"])


def test_help_shows_our_options_and_names_the_libraries(capsys):
    code, out, _ = ended(["--help"], capsys)
    assert code == 0
    assert "--rollout-batch-size N" in out and "--no-bf16" in out and "--sglang-<option>" in out
    assert "--sglang-mem-fraction-static" not in out


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (["--help", "sglang"], "--sglang-mem-fraction-static X"),
        (["--help", "router"], "--router-policy random|round_robin"),
        (["--help", "megatron"], "--recompute-granularity full|selective"),
        (["--help-all"], "--sglang-mem-fraction-static X"),
        (["--help", "batches"], "--rollout-batch-size N"),
        (["--help", "top-p"], "--eval-top-p 0..1"),
    ],
)
def test_help_on_a_topic(topic, message, capsys):
    code, out, _ = ended(topic, capsys)
    assert code == 0 and message in out


def test_help_on_nothing_is_an_error_with_what_is_nearest(capsys):
    code, out, err = ended(["--help", "rollout-temprature", "nonsense", "lr"], capsys)
    assert (code, out) == (2, "")
    assert "--help rollout-temprature: no option has this in its name\n      -> try --rollout-temperature" in err
    assert "--help nonsense: no option has this in its name\n      -> sections are run, cluster" in err
    assert "2 problems" in err


@pytest.mark.parametrize("columns", ["80", "90", "200"])
@pytest.mark.parametrize("topic", [["--help"], ["--help-all"]])
def test_help_is_as_wide_as_the_terminal_and_at_most_100_columns(topic, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = ended(topic, capsys)
    assert [line for line in out.splitlines() if len(line) > min(int(columns), 100)] == []


def test_importing_the_options_imports_no_library_that_takes_seconds():
    heavy = "torch ray sglang sglang_router megatron transformers numpy"
    code = f"import sys, slime.config.docs, slime.models.parameters; print(*set('{heavy}'.split()) & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == ""


# -- the launch script


@pytest.fixture
def script(moe: Path, prompts: Path):
    """Runs the script with some environment; the model is its config.json alone."""

    def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "MODEL_DIR": str(moe),
            "PROMPT_DATA": str(prompts),
            "EVAL_DATA": str(prompts),
            "PYTHON": sys.executable,
        }
        command = ["bash", str(ROOT / "scripts" / "run-qwen3-30B-A3B.sh"), *argv]
        return subprocess.run(
            command, env=os.environ | variables | environment, capture_output=True, text=True, timeout=120
        )

    return run


def test_the_script_of_30b_a3b_passes_its_check(script):
    done = script("--check")
    assert done.returncode == 0, done.stderr
    assert "16 ranks = TP 4 x PP 1 x CP 1 x DP 4; for the experts = EP 8 x ETP 1 x PP 1 x DP 2" in done.stdout
    assert "256 samples = 1 optimizer step x global batch of 256" in done.stdout


def test_the_script_grades_answers_of_a_chat_model(script):
    """Not only responses that are the label and nothing else."""
    assert "rewards by deepscaler" in script("--check").stdout


def test_options_after_the_scripts_own_win(script):
    assert "learning rate 2e-06" in script("--check", "--lr", "2e-6").stdout


def test_the_script_goes_on_from_its_own_checkpoints(script, tmp_path):
    said = script("--check", SAVE_DIR=str(tmp_path / "saved")).stdout
    assert f"{tmp_path}/saved" in said and "; 2 are kept" in said


def test_paths_given_to_the_script_start_where_it_is_started(script, moe, prompts, monkeypatch):
    monkeypatch.chdir(moe.parent)
    done = script("--check", MODEL_DIR=moe.name, PROMPT_DATA=os.path.relpath(prompts), NUM_NODES="08")
    assert done.returncode == 0 and f"from {moe}," in done.stdout, done.stderr
    assert "64 ranks" in done.stdout


def test_the_script_says_how_it_is_used(script):
    done = script("--help")
    assert done.returncode == 0 and "NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash" in done.stdout


def test_ray_is_that_of_the_environment_whose_python_is_taken_activated_or_not(script, tmp_path):
    for name, text in {"python": f'exec {sys.executable} "$@"', "ray": 'echo "its ray: $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "token").write_text("x")
    node = {
        "NUM_NODES": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
    }
    done = script(**node, PYTHON=str(tmp_path / "python"), PATH="/usr/bin:/bin")
    assert "its ray: start --address 10.0.0.1:6379" in done.stdout, done.stderr


def test_the_script_tells_what_is_wrong_by_status_2(script):
    done = script("--check", "--num-layers", "47")
    assert done.returncode == 2 and "states 47, but config.json says 48" in done.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NUM_NODES": "two"}, "NUM_NODES is 'two', not a number"),
        ({"NODE_RANK": "2"}, "NODE_RANK is 2, but nodes are numbered 0 to 1"),
        ({"PYTHON": "no-such-python"}, "there is no no-such-python"),
        ({"MASTER_ADDR": ""}, "set MASTER_ADDR to the address of node 0"),
        ({"MODEL_DIR": "/nowhere"}, "there is no directory MODEL_DIR=/nowhere"),
        ({"NUM_NODES": "1", "argv": "--lr-decay-stile"}, "did you mean --lr-decay-style?"),
    ],
)
def test_the_script_checks_what_it_is_given_before_it_starts_anything(script, environment, message):
    argv = environment.pop("argv", "").split()
    done = script(*argv, **environment)
    assert done.returncode == 2 and message in done.stderr
