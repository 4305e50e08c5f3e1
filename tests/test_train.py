"""train.py where it does not come to training: interrupted early, or failing to start. Nothing else is started. Takes
10 s."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slime.tiny import Tiny, make_tiny

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return make_tiny(tmp_path / "tiny", "sort", num_train=8, num_heldout=8, num_demos=8)


def command(tiny: Tiny, *options: str) -> list[str]:
    paths = ["--hf-checkpoint", str(tiny.model), "--prompt-data", str(tiny.train)]
    held_out = ["--eval-prompt-data", "sort", str(tiny.heldout)]
    devices = ["--actor-num-gpus-per-node", "1", "--cpu-slots", "1"]
    return [
        *(sys.executable, str(REPOSITORY / "train.py"), "--config", str(REPOSITORY / "configs" / "tiny-grpo.yaml")),
        *(*paths, *held_out, *devices, *options),
    ]


def test_evaluations_may_ask_for_more_than_rollouts_do(tiny, tmp_path):
    def check(*options: str) -> str:
        words = command(tiny, "--check", "--rollout-max-context-len", "64", *options)
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        return " ".join((done.stdout + done.stderr).split())

    longer = ["--eval-max-context-len", "512", "--eval-max-response-len", "400"]
    assert "Context the engines take 512 tokens, prompt and response together: rollouts ask for less" in check(*longer)
    sets = tmp_path / "sets.yaml"
    sets.write_text(f"datasets: [{{name: b, path: {tiny.heldout}, max_context_len: 512, max_response_len: 400}}]")
    told = check("--eval-config", str(sets), "--sglang-context-length", "200")
    assert "--sglang-context-length: the engine refuses what is longer than 200 tokens, and eval set b may ask" in told


def test_an_interrupt_in_the_first_moments_is_answered(tiny, tmp_path):
    slow = tmp_path / "slow.yaml"
    os.mkfifo(slow)
    process = subprocess.Popen(command(tiny, "--config", str(slow)), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    said = "nothing for a minute"
    with slow.open("w"):  # returns when train.py has opened it, too, and waits for its content
        for _ in range(6):  # Python can't answer a signal between its last look for one and the call that waits
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, said = process.communicate(timeout=10)
                break
        process.kill()
    assert (process.returncode, said) == (130, "slime: interrupted; whatever it had started has ended\n")


def test_a_run_that_fails_to_start_is_not_the_latest_and_says_where_its_logs_are(tiny, tmp_path):
    runs = tmp_path / "runs"
    (runs / "before").mkdir(parents=True)
    (runs / "before" / "metrics.jsonl").touch()
    (runs / "latest").symlink_to("before")
    nobody = {"RAY_ADDRESS": "127.0.0.1:1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command(tiny, "--run-name", "mine"), cwd=tmp_path, env=os.environ | nobody, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 1
    assert "slime: cannot join the Ray cluster at RAY_ADDRESS=127.0.0.1:1" in done.stderr
    assert done.stderr.splitlines()[-1] == "slime: the logs of this run are in runs/mine/logs"
    assert (runs / "mine" / "config.yaml").exists()
    assert (runs / "latest").readlink().name == "before"


def test_a_directory_of_something_else_is_not_written_into(tiny, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").touch()
    options = ["--run-dir", str(tmp_path / "thesis")]
    done = subprocess.run(command(tiny, *options), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert f"{tmp_path}/thesis holds something else (chapter-1.tex)" in done.stderr
    assert os.listdir(tmp_path / "thesis") == ["chapter-1.tex"]
