"""--rm-type exact_match: the answer, without its thinking, is the label."""

from __future__ import annotations

from typing import Any

from slime.rewards.errors import RewardError
from slime.rewards.final_answer import CLOSE, OPEN, opens_thinking
from slime.rewards.verdict import Verdict, right, wrong


def exact_match(args: Any, sample: Any) -> Verdict:
    """1 when the finished response says the label and nothing else, but for thinking before it; else 0.

    Thinking counts when it is opened by the response, or by the chat template at the end of the prompt, and closed
    exactly once. A response that was cut off is wrong, even if what there is of it equals the label.
    """
    if sample.label is None:
        raise RewardError(f"{sample.name} has no label, and exact_match compares with one: see --label-key")
    if sample.status != "completed":
        return wrong(f"the response is {sample.status}, not completed")
    said = answer(sample.response, thinking=opens_thinking(sample.prompt))
    if said is None:
        return wrong("the thinking does not end once")
    label = str(sample.label).strip()
    return right("the answer is the label") if said == label else wrong(f"{said[:200]!r} is not {label[:200]!r}")


def answer(response: str, *, thinking: bool) -> str | None:
    """What is said after the thinking; None when the thinking does not end, or ends twice."""
    response = response.strip()
    if not thinking and not response.startswith(OPEN):
        return response
    if response.count(CLOSE) != 1:
        return None
    return response.partition(CLOSE)[2].strip()
