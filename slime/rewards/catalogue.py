"""The built-in graders by the name that --rm-type gives them.

Invariant: a grader is a function, asynchronous or not, of (args, sample), which looks at the sample's `response`,
`label`, `prompt`, `status` and `metadata`, changes nothing, and gives a Verdict. It raises RewardError where the sample
cannot be graded, RewardFailure where the reward was not had.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from slime.rewards.choice import gpqa
from slime.rewards.code import code
from slime.rewards.dapo import dapo, dapo_wrong
from slime.rewards.errors import RewardError
from slime.rewards.exact_match import exact_match
from slime.rewards.final_answer import after_thinking, last_boxed, why_not_meant
from slime.rewards.instructions import ifbench
from slime.rewards.math_answer import math
from slime.rewards.question_answering import em, f1
from slime.rewards.random_reward import random_reward
from slime.rewards.remote import judge, remote_rm, reward_model
from slime.rewards.score import score
from slime.rewards.verdict import Verdict, wrong

GRADERS: dict[str, Callable[[Any, Any], Any]] = {
    "exact_match": exact_match,
    "math": math,
    "deepscaler": math,
    "dapo": dapo,
    "gpqa": gpqa,
    "f1": f1,
    "em": em,
    "ifbench": ifbench,
    "code": code,
    "remote_rm": remote_rm,
    "reward_model": reward_model,
    "judge": judge,
    "random": random_reward,
}
BOXED = "boxed_"
MAY_BE_BOXED = ("math", "deepscaler", "dapo", "gpqa", "f1", "em", "ifbench", "remote_rm")


async def judged(args: Any, sample: Any, rm_type: str) -> Verdict:
    """What the grader of this name says. `boxed_` before a name gives it only what the last \\boxed{} holds."""
    name = rm_type.removeprefix(BOXED)
    if name not in (GRADERS if name == rm_type else MAY_BE_BOXED):
        raise RewardError(
            f"{sample.name}: there is no reward type {rm_type!r}, only {', '.join(GRADERS)}, and {BOXED} before"
            f" {', '.join(MAY_BE_BOXED)}"
        )
    if name != rm_type:
        said = after_thinking(sample.response, sample.prompt) or ""
        boxed = last_boxed(said)
        reason = r"there is no \boxed{} after the thinking" if boxed is None else why_not_meant(said)
        if reason is not None:
            return dapo_wrong(reason) if name == "dapo" else wrong(reason)
        response = f"Answer: {boxed}" if name == "dapo" else boxed
        sample = dataclasses.replace(sample, response=response, prompt=_closed(sample.prompt))
    verdict = GRADERS[name](args, sample)
    verdict = await verdict if inspect.isawaitable(verdict) else verdict
    score(sample.name, verdict.score)
    return verdict


def _closed(prompt: Any) -> Any:
    """The prompt, its open thinking closed: what is boxed was said after it."""
    return prompt + "</think>" if isinstance(prompt, str) else prompt
