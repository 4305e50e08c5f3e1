"""scripts/gpu-check.sh: what it would run, and what it says where there is no GPU. Python itself is replaced by a
script that notes how it was called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAKE_PYTHON = """\
#!/bin/sh
here=$(dirname "$0")
if [ "$1" = -c ]; then [ ! -f "$here/no-gpu" ]; exit; fi
echo "$*" >> "$here/calls"
"""


@pytest.fixture
def binaries(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return tmp_path / "bin"


def check(binaries: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    done = subprocess.run(
        ["bash", "scripts/gpu-check.sh", *arguments],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", "VENV": str(binaries.parent)}, capture_output=True, text=True,
    )  # fmt: skip
    log = binaries / "calls"
    return done, log.read_text().splitlines() if log.exists() else []


def test_the_doctor_looks_before_the_tests_run(binaries):
    done, calls = check(binaries, "-k", "training")
    assert done.returncode == 0
    assert calls == ["-m slime.doctor", "-m pytest -v -rs --durations=0 tests/gpu -k training"]


def test_without_a_gpu_it_says_so_and_runs_nothing(binaries):
    (binaries / "no-gpu").touch()
    done, calls = check(binaries)
    assert (done.returncode, calls) == (2, [])
    assert "PyTorch sees no GPU here" in done.stderr


def test_without_a_gpu_it_can_still_list(binaries):
    (binaries / "no-gpu").touch()
    done, calls = check(binaries, "--list", "-k", "training")
    assert (done.returncode, calls) == (0, ["-m pytest --collect-only -q tests/gpu -k training"])


def test_without_an_environment_it_says_what_makes_one(tmp_path):
    done, _ = check(tmp_path / "bin")
    assert done.returncode == 2 and "scripts/install.sh --gpu --dev first" in done.stderr
