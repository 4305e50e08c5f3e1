"""Answers as somebody would write them who wants to be graded right without being so, and honest ones beside them.

awkward_cases.jsonl has one a line, judged by hand: `type`, `response`, `label`, `metadata`, and the score `expected`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from slime.data.sample import Sample
from slime.rewards.catalogue import judged

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
