"""How the commands end: interrupted while they import, without their libraries, and when nobody takes their output.
Takes 2 s."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("words", "imported"),
    [(["train.py", "--help"], "pydantic"), (["-m", "slime.tiny", "--help"], "numpy")],
    ids=["train.py", "slime.tiny"],
)
def test_an_interrupt_during_the_imports_is_one_line(words, imported, tmp_path):
    (tmp_path / f"{imported}.py").write_text("raise KeyboardInterrupt  # as Python does on Ctrl+C")
    done = run(*words, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (130, "slime: interrupted; whatever it had started has ended\n")


@pytest.mark.parametrize(
    "words", [["train.py", "--help"], ["-m", "slime.tiny", "--help"]], ids=["train.py", "slime.tiny"]
)
def test_a_library_that_is_not_installed_is_one_line(words):
    done = run("-S", *words, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert f"is not installed for {sys.executable}: `bash scripts/install.sh`" in line


@pytest.mark.parametrize(
    ("words", "library"),
    [
        (["-m", "slime.tiny", "--help"], "safetensors"),
        (["-m", "slime.bench", "rollout"], "psutil"),
        (["-m", "slime.chaos"], "psutil"),
    ],
    ids=["slime.tiny", "slime.bench", "slime.chaos"],
)
def test_whichever_library_is_not_installed_it_is_one_line(words, library, tmp_path):
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('none', name={library!r})")
    done = run(*words, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"slime: {library} is not installed for {sys.executable}: `bash scripts/install.sh`")


def test_every_library_that_is_imported_anywhere_is_known():
    code = "import slime.command; print(*slime.command.LIBRARIES)"  # in a process of its own: it changes this one's
    known = set(run("-c", code, stdout=subprocess.PIPE).stdout.split())
    nodes = [node for file in ROOT.glob("slime/**/*.py") for node in ast.walk(ast.parse(file.read_text()))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    packages = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"slime"}
    assert known == packages - {"memray"}  # which no install brings, and which is missed by its option


def test_the_doctor_needs_no_library():
    done = run("-S", "-m", "slime.doctor", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"torch +missing\n +trains and generates: run scripts/install.sh\n", done.stdout)
    assert done.stdout.splitlines()[-1].startswith("cannot run here: torch, megatron-core, ")


def test_output_that_is_closed_ends_a_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    done = run("-S", "-m", "slime.doctor", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_on_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = run("-S", "-m", "slime.doctor", stdout=full)
    assert (done.returncode, done.stderr) == (1, "slime: standard output cannot be written: No space left on device\n")


def test_lost_output_ends_the_main_thread_once_and_in_order():
    """Not by another thread, whose end nobody would notice; and what is said on the way out disturbs nothing."""
    script = textwrap.dedent("""
        import sys, threading
        from slime.command import OutputLost
        other = threading.Thread(target=print, args=("of another thread",), kwargs={"flush": True})
        other.start(); other.join()
        try:
            print("of the main thread", flush=True)
        except OutputLost:
            print("on the way out", flush=True)
            print("in order", file=sys.stderr)
            raise
    """)
    reading, writing = os.pipe()
    os.close(reading)
    done = run("-c", script, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "in order\n")
