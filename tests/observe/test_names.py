"""names.py, docs/metrics.md and what the rooms emit say the same."""

import ast
import re
from pathlib import Path

import pytest

import slime
from slime.observe import names

SOURCE = Path(slime.__file__).parent


def test_document_is_made_from_the_table():
    document = SOURCE.parent / "docs" / "metrics.md"
    assert document.read_text() == names.document(), "make it again, as the head of slime/observe/names.py says"


READERS = {"names.py", "table.py", "summary.py", "report.py"}  # of slime/observe: they know names, but log none


@pytest.fixture(scope="module")
def strings():
    """Every string in the source of those who log, and its file; 8 stands for what an f-string puts in."""
    found = []
    for file in [SOURCE.parent / "train.py", *SOURCE.rglob("*.py")]:
        if file.parent.name == "observe" and file.name in READERS:
            continue
        nodes = list(ast.walk(ast.parse(file.read_text())))
        joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
        pieces = {id(piece) for node in joined for piece in node.values}
        for node in joined:
            parts = [piece.value if isinstance(piece, ast.Constant) else "8" for piece in node.values]
            found.append(("".join(parts), file))
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
                found.append((node.value, file))
    return found


def test_what_the_rooms_log_stands_in_the_table(strings):
    undocumented = {
        name: file
        for name, file in strings
        if re.fullmatch(r"[a-z_-]+(/[\w@.-]*[a-z][\w@.-]*)+|eval/8[\w@.-]*", name)
        and not re.match(r"(rollout|perf|train)/8", name)  # put together from what is written elsewhere
        and names.is_ours(name)
        and not (names.find(name) or names.find(f"{name}/mean"))
    }
    assert undocumented == {}


def test_what_stands_in_the_table_is_logged(strings):
    """Told by its words: of perf/log_probs_time somebody writes `log_probs`."""
    text = "\n".join(string for string, _ in strings)
    for metric in names.METRICS:
        stem = re.sub(r"\{[^}]+\}|_time$|_tflops$", "", metric.pattern.partition("/")[2])
        for word in re.findall(r"[a-z]\w+", stem):
            assert word in text, f"{metric.pattern} is documented, but nobody writes {word!r}"


def test_every_entry_is_found_by_its_own_name():
    for metric in names.METRICS:
        example = re.sub(r"\{([^}|]+)[^}]*\}", lambda part: "8" if part[1] == "k" else part[1], metric.pattern)
        assert names.find(example) is metric, example


def test_patterns_are_unique():
    patterns = [metric.pattern for metric in names.METRICS]
    assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("eval/col", "eval/{set}"),
        ("eval/step", "eval/step"),
        ("eval/gsm8k-pass@16", "eval/{set}-pass@{k}"),
        ("eval/my-set-truncated_ratio", "eval/{set}-truncated_ratio"),
        ("eval/col/response_len/median", "eval/{set}/response_len/{mean|median|max|min}"),
        ("rollout/zero_std/count_0.5", "rollout/zero_std/count_{reward}"),
        ("rollout/response_len/mode", None),
        ("train/loss/extra", None),
        ("train/lossx", None),
    ],
)
def test_find(name, pattern):
    found = names.find(name)
    assert (found and found.pattern) == pattern


def test_axes():
    assert names.axes(["train/loss", "mine"]) == ("train/step",)
    assert names.axes(["rollout/raw_reward", "perf/step_time"]) == ("rollout/step",)
    assert names.axes(["eval/col", "train/loss"]) == ("eval/step", "train/step")
    assert names.axes(["mine"]) == names.axes([]) == ("rollout/step",)


def test_eval_set():
    metrics = [
        "eval/col",
        "eval/step",
        "eval/col-pass@8",
        "eval/col/thinking_ratio",
        "eval/col-truncated_ratio",
        "rollout/col",
    ]
    assert [names.eval_set(name) for name in metrics] == ["col", None, None, None, None, None]
