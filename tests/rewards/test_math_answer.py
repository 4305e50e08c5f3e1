"""--rm-type math on answers judged by hand (case 16): math_cases.jsonl has one a line, with the score expected."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from slime.data.sample import Sample
from slime.rewards import RewardError
from slime.rewards.catalogue import judged
from slime.rewards.math_compare import same

CASES = [json.loads(line) for line in Path(__file__).with_name("math_cases.jsonl").read_text().splitlines()]


def verdict(response: str, label: object, rm_type: str = "math", **fields: object):
    return asyncio.run(judged(None, Sample(response=response, label=label, **fields), rm_type))


def test_answers_judged_by_hand() -> None:
    async def grade_all() -> list:
        samples = [Sample(response=case["response"], label=case["label"]) for case in CASES]
        return await asyncio.gather(*(judged(None, sample, "math") for sample in samples))

    misjudged = [
        f"line {number}: {case['response'][:80]} for {case['label']}: {verdict.score}, {verdict.reason[:200]}"
        for number, (case, verdict) in enumerate(zip(CASES, asyncio.run(grade_all()), strict=True), 1)
        if verdict.score != case["expected"]
    ]
    assert not misjudged, "\n".join(misjudged)


def test_thinking_that_the_prompt_opened() -> None:
    prompt = "<|im_start|>assistant\n<think>\n"
    assert verdict(r"\boxed{4}", 4, prompt=prompt).score == 0.0
    assert verdict(r"hm</think>\boxed{4}", 4, prompt=prompt).score == 1.0


def test_the_reason_says_what_was_compared() -> None:
    assert verdict(r"\boxed{4}", 5).reason == "4 is not 5"
    assert verdict(r"\boxed{4", 4).reason == r"the last \boxed{ is not closed"


def test_a_sample_without_a_label_is_named() -> None:
    with pytest.raises(RewardError, match=r"sample 4 .*has no label.*--label-key"):
        verdict("4", None, index=4)


@pytest.mark.parametrize("text", ["__import__('os').system('touch {}')", "open('{}','w')", r"\text{{open('{}','w')}}"])
def test_nothing_in_an_answer_is_executed(tmp_path: Path, text: str) -> None:
    target = tmp_path / "pwned"
    assert not same(text.format(target), "1")[0] and not same("1", text.format(target))[0]
    assert not target.exists()


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("Hence\nAnswer: 34", 1.0),
        ("Answer: $34$", 1.0),
        (r"Answer: \boxed{34}", 1.0),
        ("answer: 34.", 1.0),
        ("**Answer:** 34", 1.0),
        ("Answer: 35", -1.0),
        ("Answer: 34\nAnswer: 35", -1.0),
        ("34", -1.0),
        ("Answer: 34" + " " * 300 + "x", -1.0),
        ("<think>Answer: 34", -1.0),
    ],
)
def test_dapo(response: str, score: float) -> None:
    given = verdict(response, "34", "dapo")
    assert given.score == score and given.reward.keys() == {"score", "acc", "pred"}
    assert given.reward["acc"] is (score == 1)


def test_boxed_before_a_name_grades_what_the_box_holds() -> None:
    assert verdict(r"so \boxed{the cat}", "cat", "boxed_f1").score == 1.0
    assert verdict("so the cat", "cat", "boxed_f1").score == 0.0
    assert verdict(r"\boxed{dog} or \boxed{cat}", "cat", "boxed_f1").score == 0.0
    assert verdict(r"so \boxed{34}", "34", "boxed_dapo").reward == {"score": 1.0, "acc": True, "pred": "34"}
    assert verdict("Answer: 34", "34", "boxed_dapo").score == -1.0
    assert verdict(r"a</think>\boxed{34}", "34", "boxed_math", prompt="<think>").score == 1.0
