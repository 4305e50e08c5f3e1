"""What tests of whole runs do: start train.py as a user does, wait for what it writes, find its processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from slime.observe import read_metrics
from slime.tiny import make_tiny

REPOSITORY = Path(__file__).parents[1]
RUN_S = 420.0  # a run takes 40 s on two idle cores
END_S = 30.0
MARK = "SLIME_TEST_RUN"
DECOUPLED = ["--no-colocate", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"]


@contextmanager
def driver(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """train.py, writing to tmp_path/output; all that it starts inherits the mark."""
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "train.py", *options, "--run-dir", str(tmp_path / "run")],
            cwd=REPOSITORY,
            env={**os.environ, MARK: str(tmp_path), "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for left in marked(tmp_path):
                left.kill()
    assert "is not in docs/metrics.md" not in (tmp_path / "output").read_text()


def train(tmp_path: Path, *options: str) -> str:
    """Runs to the end, successfully; returns what it printed."""
    with driver(tmp_path, *options) as process:
        status = process.wait(RUN_S)
        output = (tmp_path / "output").read_text()
        assert status == 0, output
        assert_nothing_left(tmp_path)
    return output


def marked(tmp_path: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(tmp_path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_nothing_left(tmp_path: Path) -> None:
    deadline = time.monotonic() + END_S
    while left := marked(tmp_path):
        assert time.monotonic() < deadline, f"still running: {[process.cmdline() for process in left]}"
        time.sleep(0.2)


def wait_for(path: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + RUN_S
    while not (path.exists() and re.search(pattern, path.read_text(), re.MULTILINE)):
        text = path.read_text() if path.exists() else ""
        assert process.poll() is None, f"ended with {process.returncode}:\n{text}"
        assert time.monotonic() < deadline, f"no {pattern!r} after {RUN_S:g} s:\n{text}"
        time.sleep(0.1)


def of_no_knowledge(directory: Path, model: Path | None = None) -> list[str]:
    """Options of a run whose model, a new one unless it is given, knows nothing, so that rewards are random."""
    tiny = make_tiny(directory / "tiny", "sort", num_train=40, num_heldout=8, num_demos=8)
    (directory / "quick.yaml").write_text("eval-interval: null\neval-prompt-data: []\nrm-type: random\n")
    return [
        *("--config", "configs/tiny-grpo.yaml", "--config", str(directory / "quick.yaml")),
        *("--hf-checkpoint", str(model or tiny.model), "--prompt-data", str(tiny.train)),
        *("--actor-num-gpus-per-node", "1"),
    ]


def column(run_dir: Path, name: str) -> list[float]:
    return [row[name] for row in read_metrics(run_dir) if name in row]


def is_engine(process: psutil.Process) -> bool:
    """Its workers are forked from it, and have its command line."""
    server = ["-m", "slime.inference.launch"]
    return process.cmdline()[1:3] == server and process.parent().cmdline()[1:3] != server


def is_router(process: psutil.Process) -> bool:
    return process.name().startswith("sglang::router")
