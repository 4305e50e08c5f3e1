"""python -m slime.rewards grade"""

from __future__ import annotations

import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from slime.config.sections.rollout import Reward
from slime.rewards.__main__ import main
from slime.rewards.catalogue import BOXED, GRADERS, MAY_BE_BOXED


def write(path: Path, *lines: object) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_one_response() -> None:
    command = [sys.executable, "-m", "slime.rewards", "grade", "--type", "math"]
    done = subprocess.run([*command, "--response", r"\boxed{4}", "--label", "5"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0: 4 is not 5\n", "")


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """In the order of the file, though the second takes a worker and the others none; a case may name its own type."""
    file = write(
        tmp_path / "cases.jsonl",
        {"response": r"\boxed{4}", "label": 4},
        "",
        {"response": r"\boxed{\sqrt{12}}", "label": r"2\sqrt{3}"},
        {"response": "Answer: 4", "label": "4", "metadata": {"rm_type": "dapo"}},
        {"response": "4", "label": "5"},
    )
    assert main(["grade", "--type", "math", "--file", file]) == 0
    first, second, third, fourth = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"score": 1.0, "reason": "the answer is the label, letter by letter"}
    assert second["score"] == 1.0 and fourth["score"] == 0.0
    assert third == {"score": 1.0, "reason": "the answer is the label, letter by letter", "acc": True, "pred": "4"}


def test_all_lines_that_are_not_sound_are_named_and_none_is_graded(tmp_path: Path, capsys) -> None:
    sound, silent, no_text = {"response": "4", "label": 4}, {"label": 4}, {"response": 4}
    file = write(tmp_path / "cases.jsonl", sound, "{", [1], silent, no_text)
    assert main(["grade", "--type", "math", "--file", file]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(": ")[0] for line in err.splitlines()] == [f"{file}:{n}" for n in (2, 3, 4, 5)]


def test_a_case_that_cannot_be_graded_has_no_score_and_the_others_have_theirs(tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "cases.jsonl", {"response": "4"}, {"response": "4", "label": 4})
    assert main(["grade", "--type", "math", "--file", file]) == 1
    out, err = capsys.readouterr()
    without, graded = map(json.loads, out.splitlines())
    assert without["score"] is None and without["reason"].startswith(f"{file}:1 has no label")
    assert graded["score"] == 1.0 and err == without["reason"] + "\n"


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["--type", "maths", "--response", "4", "--label", "4"], 1, "there is no reward type 'maths', only exact_m"),
        (["--type", "math"], 2, "Give --response and --label, or --file"),
        (["--type", "math", "--file", "no/such.jsonl"], 2, "No such file"),
        (
            ["--type", "math", "--file", "no.jsonl", "--response", "4", "--label", "4"],
            2,
            "--response, --label would not",
        ),
        (["--type", "boxed_code", "--response", "4", "--label", "4"], 1, "no reward type 'boxed_code'"),
    ],
)
def test_mistakes(argv: list[str], status: int, message: str, capsys) -> None:
    assert main(["grade", *argv]) == status
    assert message in capsys.readouterr().err


def test_a_list_of_labels(capsys: pytest.CaptureFixture) -> None:
    """Of texts: of numbers it is a vector, or an interval."""
    for response, label, score in (("5", '["4", "5"]', "1"), ("4", "[4, 5]", "0"), ("[4, 5]", "[4, 5]", "1")):
        assert main(["grade", "--type", "math", "--response", response, "--label", label]) == 0
        assert capsys.readouterr().out.startswith(f"{score}: ")


def test_a_file_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_bytes('{"response": "4", "label": 4}'.encode("utf-16"))
    assert main(["grade", "--type", "math", "--file", str(file)]) == 2
    assert f"{file}:1: not text in UTF-8" in capsys.readouterr().err


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    file = write(tmp_path / "cases.jsonl", {"response": "4", "label": 4})
    command = [sys.executable, "-m", "slime.rewards", "grade", "--type", "math", "--file", file]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "slime: standard output cannot be written: No space left on device\n",
    )


def test_the_option_knows_the_graders() -> None:
    annotation = Reward.model_fields["rm_type"].annotation
    offered = {name for kind in typing.get_args(annotation) for name in typing.get_args(kind)}
    assert offered == {*GRADERS, *(BOXED + name for name in MAY_BE_BOXED)}
