"""names.py, docs/metrics.md and what the rooms emit say the same."""

import re
from pathlib import Path

import pytest

import slime
from slime.observe import names

SOURCE = Path(slime.__file__).parent


def test_document_is_made_from_the_table():
    document = SOURCE.parent / "docs" / "metrics.md"
    assert document.read_text() == names.document(), "make it again, as the head of slime/observe/names.py says"


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
