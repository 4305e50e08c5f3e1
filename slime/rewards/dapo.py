"""--rm-type dapo: the rules of DAPO (arXiv:2503.14476): 1 or -1, by an "Answer:" line at the end of the response."""

from __future__ import annotations

import re
from typing import Any

from slime.rewards.final_answer import after_thinking, concluded, last_boxed, takes_back, why_not_meant
from slime.rewards.label import label_of
from slime.rewards.math_answer import compare
from slime.rewards.verdict import Verdict, wrong

TAIL = 300  # characters in which the answer must stand
_LINE = re.compile(
    r"(?P<meant>(?:^|[.!?:,;]\s|\b(?:the|my|our|final|correct|right|so|thus|hence|therefore)\s)\W{0,6})?"
    r"answer\s*:[ \t*]*(?P<said>[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_DENIED = re.compile(r"\b(?:not|n't|wrong|incorrect|false|bad|never|no)\b[^.!?\n]*\Z", re.IGNORECASE)


async def dapo(args: Any, sample: Any) -> Verdict:
    """A dict of `score` (1 or -1), `acc` (whether it is right) and `pred` (the answer as it stands, None without)."""
    label = label_of(sample)
    said = after_thinking(sample.response, sample.prompt)
    lines = list(_LINE.finditer(said[-TAIL:])) if said is not None else []
    if not lines:
        where = "the thinking does not end" if said is None else f"no line Answer: in the last {TAIL} characters"
        return dapo_wrong(where)
    line = lines[-1]
    pred = last_boxed(line["said"]) or line["said"].strip().strip("*").strip()
    before, after = line.string[: line.start("said")], line.string[line.end() :]
    later = last_boxed(after) or concluded(after)
    commented = before.rpartition("\n")[2].lstrip().startswith("%")
    if commented or line["meant"] is None or _DENIED.search(before) or takes_back(after, pred):
        verdict = wrong("it says that this is not the answer")
    elif reason := why_not_meant(line["said"]):
        verdict = wrong(reason)
    elif later is not None and not (await compare(sample, later, pred)).score:
        verdict = wrong(f"after it another answer is stated: {later}")
    else:
        verdict = await compare(sample, pred, label)
    right = verdict.score == 1
    return Verdict(1.0 if right else -1.0, verdict.reason, {"acc": right, "pred": pred})


def dapo_wrong(reason: str) -> Verdict:
    """Of a response without an answer."""
    return Verdict(-1.0, reason, {"acc": False, "pred": None})
