"""--rm-type dapo: the rules of DAPO (arXiv:2503.14476): 1 or -1, by an "Answer:" line at the end of the response."""

from __future__ import annotations

import re
from typing import Any

from slime.rewards.final_answer import after_thinking, last_boxed
from slime.rewards.label import label_of
from slime.rewards.math_answer import compare
from slime.rewards.verdict import Verdict

TAIL = 300  # characters in which the answer must stand
_LINE = re.compile(r"answer\s*:[ \t*]*([^\n]+)", re.IGNORECASE)


async def dapo(args: Any, sample: Any) -> Verdict:
    """A dict of `score` (1 or -1), `acc` (whether it is right) and `pred` (the answer as it stands, None without)."""
    label = label_of(sample)
    said = after_thinking(sample.response, sample.prompt)
    lines = _LINE.findall(said[-TAIL:]) if said is not None else []
    if not lines:
        where = "the thinking does not end" if said is None else f"no line Answer: in the last {TAIL} characters"
        return dapo_wrong(where)
    pred = last_boxed(lines[-1]) or lines[-1].strip().strip("*").strip()
    verdict = await compare(pred, label)
    right = verdict.score == 1
    return Verdict(1.0 if right else -1.0, verdict.reason, {"acc": right, "pred": pred})


def dapo_wrong(reason: str) -> Verdict:
    """Of a response without an answer."""
    return Verdict(-1.0, reason, {"acc": False, "pred": None})
