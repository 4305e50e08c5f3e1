"""`python -m slime.tiny`: what it writes, and that it writes all of it or nothing."""

import json
import subprocess
import sys

import pytest

from slime.tiny import TASKS, is_held_out, make_tiny
from slime.tiny.__main__ import main


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def content(tiny):
    return {path.relative_to(tiny.root): path.read_bytes() for path in tiny.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("task", TASKS)
def test_files_have_the_wanted_number_of_records_and_no_held_out_prompt_in_training(tmp_path, task):
    tiny = make_tiny(tmp_path / "tiny", task, num_train=50, num_heldout=20, num_demos=70)
    train, heldout, sft = lines(tiny.train), lines(tiny.heldout), lines(tiny.sft)
    assert (len(train), len(heldout), len(sft)) == (50, 20, 70)
    assert all(is_held_out(record["prompt"][0]["content"]) for record in heldout)
    assert not any(is_held_out(record["prompt"][0]["content"]) for record in train)
    assert not any(is_held_out(record["messages"][0]["content"]) for record in sft)
    assert set(train[0]) == {"prompt", "label"} and isinstance(train[0]["label"], str)
    assert [message["role"] for message in sft[0]["messages"]] == ["user", "assistant"]


def test_files_depend_on_the_seed_and_each_file_only_on_its_own_count(tmp_path):
    sizes = {"num_train": 50, "num_heldout": 20, "num_demos": 70}
    first = content(make_tiny(tmp_path / "a", **sizes))
    assert content(make_tiny(tmp_path / "b", **sizes)) == first
    other_seed = content(make_tiny(tmp_path / "c", **sizes, seed=1))
    assert all(other_seed[path] != first[path] for path in first if path.suffix in (".jsonl", ".safetensors"))
    longer = make_tiny(tmp_path / "d", **sizes | {"num_train": 60})
    assert {path for path, data in content(longer).items() if data != first[path]} == {
        longer.train.relative_to(longer.root)
    }


def test_a_directory_in_use_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="already exists: remove it, or choose another --output"):
        make_tiny(tmp_path, num_demos=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(KeyError):
        make_tiny(tmp_path / "tiny", "no such task")
    assert list(tmp_path.iterdir()) == []


def test_the_command_imports_neither_torch_nor_transformers(tmp_path):
    arguments = ["--task", "sort", "--output", str(tmp_path / "out"), "--num-demos", "3"]
    code = (
        f"import runpy, sys; sys.argv[1:] = {arguments}\n"
        "try: runpy.run_module('slime.tiny', run_name='__main__')\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "out/sft.jsonl: 3 demonstrations" in done.stdout


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--output", "x", "--num-demos", "0"], 2, "--num-demos must be at least 1, not 0"),
        (["--output", "x", "--num-train", "8101"], 2, "--num-train 8101 is more than the 8100 different prompts"),
        (["--output", "file/x"], 1, "cannot make file/x: a file is in the way"),
    ],
)
def test_what_cannot_be_made_is_refused(options, status, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["slime.tiny", *options])
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        sys.exit(main())
    assert ended.value.code == status and message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
