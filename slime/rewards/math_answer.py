"""--rm-type math, deepscaler: the final answer, in a box if there is one, is the label by mathematics.

A wrong answer passed is worse than a right one missed: what is not shown to be equal is wrong, and so is an answer that
offers several, was only thought, or takes longer than five seconds to compare.
"""

from __future__ import annotations

from typing import Any

from slime.rewards.errors import RewardError, RewardFailure
from slime.rewards.final_answer import (
    after_last_box,
    after_thinking,
    has_box,
    last_boxed,
    stated,
    stated_later,
    why_not_meant,
)
from slime.rewards.label import label_of
from slime.rewards.math_text import same_literally
from slime.rewards.units import PER_CENT, split_unit, unit_after
from slime.rewards.verdict import Verdict, right, wrong
from slime.rewards.workers import WorkerDied, WorkerKilled, WorkerUnfit, workers


async def math(args: Any, sample: Any) -> Verdict:
    """1 when the last \\boxed{} after the thinking, else the answer stated by the last line, equals the label.

    Labels may be boxed as well; a list of labels is one of several answers that are right.
    """
    said = after_thinking(sample.response, sample.prompt)
    if said is None:
        return wrong("the thinking does not end")
    if has_box(said):
        answer = last_boxed(said)
        if answer is None:
            return wrong(r"the last \boxed{ is not closed")
        if reason := why_not_meant(said):
            return wrong(reason)
        later = stated_later(said)
        if later is not None and not (await compare(sample, later, answer)).score:
            return wrong(f"after the box it states another answer: {later}")
        return await compare(sample, answer, label_of(sample), unit_after(after_last_box(said)))
    answer = stated(said)
    if answer is None:
        return wrong(r"there is no \boxed{} and the last line states no answer")
    return await compare(sample, answer, label_of(sample))


async def compare(sample: Any, answer: str, label: Any, unit: str = "") -> Verdict:
    """Whether an answer of the sample, with the unit that stands after it, is the label, or one of a list. Raises
    RewardFailure where nobody could tell this time, RewardError where nobody can here."""
    labels = label if isinstance(label, list) else [label]
    reasons = []
    for one in labels:
        text = _text_of(one)
        equal, reason = await _same(sample, _with_unit(answer, unit, text), text)
        if equal:
            return right(reason)
        reasons.append(reason)
    return wrong("; ".join(reasons))


async def _same(sample: Any, answer: str, label: str) -> tuple[bool, str]:
    decided = same_literally(answer, label)
    if decided is not None:
        return decided
    try:
        equal, reason = await workers().run("slime.rewards.math_compare:same", answer, label)
    except WorkerUnfit as lack:
        raise RewardError(f"{sample.name}: nothing can be compared here: {lack}") from lack
    except WorkerKilled as death:
        raise RewardFailure(sample.name, f"comparing {answer:.80} with {label:.80}: {death}, twice") from death
    except WorkerDied as death:
        return False, f"comparing {answer:.80} with {label:.80} {death}"
    return equal, reason


def _with_unit(answer: str, unit: str, label: str) -> str:
    """A unit in the box is the one that is meant; one that the label leaves out is no difference, but per cent is."""
    in_box = split_unit(answer)[1] or answer.endswith("%")
    matters = unit == PER_CENT or split_unit(label)[1]
    return answer + unit if unit and matters and not in_box else answer


def _text_of(label: Any) -> str:
    label = str(label)
    boxed = last_boxed(label)
    return label if boxed is None else boxed
