"""scripts/install.sh: what it says when it cannot go on, and that an interrupted install is completed. Takes 6 s.

pip itself is replaced by a script that notes how it was called; the real install is what runs these tests.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAKE_PYTHON = """\
    #!/bin/sh
    # Stands for the interpreter of a virtual environment: pip installs nothing, and fails at Megatron while the file
    # `broken` is there.
    here=$(dirname "$0")
    case "$*" in
        "-m pip --version") exit 0 ;;
        *) echo "$*" >> "$here/calls" ;;
    esac
    if [ -f "$here/slow" ]; then sleep 60; fi
    case "$*" in
        *+cpu) if [ -f "$here/no-torch" ]; then cat "$here/no-torch"; exit 1; fi ;;
        *megatron*) if [ -f "$here/broken" ]; then echo "ERROR: connection lost"; exit 1; fi ;;
    esac
"""


def install(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "scripts/install.sh", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = tmp_path / "bin" / "python"
    python.write_text(textwrap.dedent(FAKE_PYTHON))
    python.chmod(0o755)
    return tmp_path


def calls(venv: Path) -> list[str]:
    log = venv / "bin" / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def test_a_broken_install_says_so_and_is_completed_by_the_next_run(venv):
    (venv / "bin" / "broken").touch()
    first = install(str(venv))
    assert first.returncode == 1
    assert "[3/6] Megatron-core failed" in first.stderr
    assert "ERROR: connection lost" in first.stderr
    assert "run this again to go on where it stopped" in first.stderr
    assert len(calls(venv)) == 3

    (venv / "bin" / "broken").unlink()
    second = install(str(venv))
    assert second.returncode == 0, second.stderr
    made = calls(venv)
    assert [("--force-reinstall" in call) for call in made] == [False, False, True, False, False, False]
    assert re.search(r"torch==2[.\d]+\+cpu$", made[0]), "torch comes first and exactly"
    assert made[-1] == "-m slime.doctor --imports"

    third = install(str(venv))
    assert third.returncode == 0
    assert third.stdout.strip() == f"{venv} is up to date"
    assert calls(venv) == []


def test_where_torch_comes_with_cuda_only_it_is_said_and_taken(venv):
    (venv / "bin" / "no-torch").write_text("ERROR: No matching distribution found for torch==2+cpu\n")
    done = install(str(venv), TORCH_INDEX="file:///nowhere")
    assert done.returncode == 0, done.stderr
    first, second = calls(venv)[:2]
    assert "--extra-index-url file:///nowhere" in first and first.endswith("+cpu")
    assert second.endswith(first.split()[-1].removesuffix("+cpu")) and "nowhere" not in second
    assert ("found no torch for the CPU alone" in done.stdout) == (platform.machine() == "x86_64")


def test_the_torch_with_cuda_is_not_taken_for_another_failure(venv):
    (venv / "bin" / "no-torch").write_text("ERROR: Could not install packages: No space left on device\n")
    done = install(str(venv))
    assert done.returncode == 1 and "No space left on device" in done.stderr
    assert len(calls(venv)) == 1 and "CUDA" not in done.stdout


def interrupted(began: Path, how: signal.Signals, *arguments: str, **environment: str) -> tuple[int, str]:
    """Status and standard error of an install that gets a signal once `began` is there: of Ctrl+C all in a terminal do.
    Nothing that it had started goes on."""
    command, environment = ["bash", "scripts/install.sh", *arguments], {**os.environ, **environment}
    running = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    while not began.exists():
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.05)
    (os.killpg if how == signal.SIGINT else os.kill)(running.pid, how)
    said = running.communicate(timeout=20)[1]  # which what goes on would hold open
    return running.returncode, said


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stage_that_is_interrupted_is_said_to_go_on(venv, how, status):
    (venv / "bin" / "slow").touch()
    assert interrupted(venv / "bin" / "calls", how, str(venv)) == (
        status,
        "install.sh: interrupted: run this again to go on\n",
    )
    (venv / "bin" / "slow").unlink()
    calls(venv)
    assert install(str(venv)).returncode == 0
    assert "--force-reinstall" in calls(venv)[0]


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_the_environment_is_made_is_one_line(tmp_path, how, status):
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
        case "$*" in
            *version_info*) echo 3.12 ;;
            "-m venv"*) touch {tmp_path}/began; {sys.executable} -c "import time; time.sleep(60)" ;;
        esac
        """
    )
    python.chmod(0o755)
    assert interrupted(tmp_path / "began", how, str(tmp_path / "venv"), PYTHON=str(python)) == (
        status,
        "install.sh: interrupted: run this again to go on\n",
    )


def test_for_gpus_megatron_comes_by_itself_since_it_says_that_it_needs_python_3_12(venv):
    """While the other packages' dependencies are found, pip would find no version of it for 3.11."""
    given = install("--gpu", str(venv))
    assert given.returncode == 0, given.stderr
    made = [call for call in calls(venv) if " -r " in call]
    alone = [call for call in made if "megatron.txt" in call]
    assert len(made) == 2 and len(alone) == 1 and "--no-deps --ignore-requires-python" in alone[0]
    assert not any("requirements/gpu.txt" in call or "--no-deps" in call for call in made if call not in alone)


def test_for_gpus_an_interrupted_stage_finds_what_its_packages_need_again(venv):
    (venv / ".slime-stage").write_text("SGLang, Ray and the rest for CUDA")
    install("--gpu", str(venv))
    again = [call for call in calls(venv) if "--force-reinstall" in call]
    assert len(again) == 1 and "--no-deps" not in again[0]


def test_an_image_takes_megatron_by_itself_as_well():
    steps = (ROOT / "docker" / "Dockerfile").read_text()
    assert "--no-deps --ignore-requires-python" in steps and "-r requirements/gpu.txt" not in steps


def test_what_tests_need_is_added_to_what_is_there(venv):
    install(str(venv))
    calls(venv)
    install("--dev", str(venv))
    assert any("requirements/dev.txt" in call for call in calls(venv))
    install(str(venv))
    assert calls(venv) == [], "more than was asked for is there already"


def editable_of(venv: Path, checkout: Path) -> None:
    """As pip notes where an editable install comes from (PEP 610)."""
    info = venv / "lib" / "python3.11" / "site-packages" / "slime-0.1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    url = {"dir_info": {"editable": True}, "url": checkout.as_uri()}
    (info / "direct_url.json").write_text(json.dumps(url))


def test_the_environment_of_another_checkout_is_left_alone(venv, tmp_path_factory):
    other = tmp_path_factory.mktemp("the other")
    editable_of(venv, other)
    said = install(str(venv))
    assert said.returncode == 1
    assert f"{venv} is the environment of {other}" in said.stderr and "pip uninstall -y slime" in said.stderr
    assert calls(venv) == []


def test_an_environment_of_this_checkout_or_of_one_that_is_gone_is_taken(venv, tmp_path):
    for checkout in (ROOT, tmp_path / "gone"):
        (venv / ".slime-installed").unlink(missing_ok=True)
        editable_of(venv, checkout)
        assert install(str(venv)).returncode == 0


def test_without_a_fitting_python_it_says_what_to_install(tmp_path):
    said = install(str(tmp_path / "venv"), PYTHON="/nonexistent/python")
    assert said.returncode == 1
    assert "needs Python 3.11, 3.12 or 3.13, found none at PYTHON=/nonexistent/python" in said.stderr
    assert "apt-get install" in said.stderr


def test_without_the_venv_module_it_says_what_to_install(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$2" in *version_info*) echo 3.12 ;; *) exit 1 ;; esac\n')
    python.chmod(0o755)
    said = install(str(tmp_path / "venv"), PYTHON=str(python))
    assert said.returncode == 1
    assert "apt-get install python3.12-venv" in said.stderr


def test_a_directory_that_is_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    said = install(str(tmp_path))
    assert said.returncode == 1
    assert "is no virtual environment" in said.stderr
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_an_unknown_option_is_an_error():
    said = install("--develop")
    assert said.returncode == 2
    assert "unknown option --develop" in said.stderr
