"""Answers as somebody would write them who wants to be graded right without being so, and honest ones beside them.

awkward_cases.jsonl has one a line, judged by hand: `type`, `response`, `label`, `metadata`, and the score `expected`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path

import pytest

from slime.data.sample import Sample
from slime.rewards.catalogue import judged
from slime.rewards.instructions import CHECKS
from tests.rewards.test_instructions import TABLE

CASES = [json.loads(line) for line in Path(__file__).with_name("awkward_cases.jsonl").read_text().splitlines()]


async def grade(case: dict) -> str | None:
    """What is wrong with the score of a case."""
    sample = Sample(response=case["response"], label=case.get("label"), metadata=case.get("metadata") or {})
    verdict = await judged(None, sample, case["type"])
    if verdict.score == case["expected"]:
        return None
    return f"{case['type']} of {case['response'][:80]!r} for {case.get('label')!r}: {verdict.score}, {verdict.reason}"


def test_nothing_wrong_passes_and_nothing_plain_is_missed() -> None:
    async def grade_all() -> list[str | None]:
        return await asyncio.gather(*map(grade, CASES))

    misjudged = list(filter(None, asyncio.run(grade_all())))
    assert not misjudged, "\n".join(misjudged)


@pytest.mark.parametrize("rm_type", ["math", "dapo", "gpqa", "em"])
def test_a_long_run_of_one_character_is_read_in_linear_time(rm_type: str) -> None:
    """Where the square of the length was needed, this took minutes."""
    for character in "\n$ .-{":
        run = character * 100_000
        for response in (rf"\boxed{{2}}{run}x", rf"\boxed{{2{run}x}}", run):
            verdict = asyncio.run(judged(None, Sample(response=response, label="B"), rm_type))
            assert verdict.score <= 0


@pytest.mark.parametrize(("name", "kwargs"), [(name, kwargs) for name, kwargs, *_ in TABLE])
def test_an_instruction_is_looked_for_in_linear_time(name: str, kwargs: dict) -> None:
    """This grader is no process of its own: where it took the square of the length, the whole rollout stood still."""
    for before, character, after in itertools.product(("", "[", "<<", "**", '"', "{"), "a_\n ![<*-", ("", "x")):
        response = before + character * 30_000 + after
        began = time.process_time()
        CHECKS[name](response, **kwargs)
        took = time.process_time() - began
        assert took < 1, f"{took:.0f} s for {response[:5]!r}... of {len(response)} characters"
