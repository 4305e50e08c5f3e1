"""--custom-rm-path slime.rewards.teacher.ask_teacher: on-policy distillation from a model that SGLang serves, at
--rm-url.

The teacher reads the tokens of a sample, prompt and response, so it has the policy's vocabulary. What it says of each
response token goes into `teacher_log_probs`; the reward is 0, so that nothing else is learnt from.
"""

from __future__ import annotations

from typing import Any

from slime.rewards.errors import RewardFailure
from slime.rewards.http_service import ask


async def ask_teacher(args: Any, sample: Any, **_: Any) -> float:
    """Raises RewardFailure when the answer has no log-probability for each response token."""
    count = sample.response_length
    if count:
        body = {
            "input_ids": list(sample.tokens),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": len(sample.tokens) - count - 1,
        }
        answer = await ask(args, sample.name, "/generate", body)
        try:
            entries = answer["meta_info"]["input_token_logprobs"][-count:]
            said = [float(log_prob) for log_prob, token, *_ in entries]
            read = [token for _, token, *_ in entries]
        except (LookupError, TypeError, ValueError):
            raise RewardFailure(f"{sample.name}: the teacher at {args.rm_url} answered {answer!r:.200}") from None
        if read != list(sample.tokens[-count:]):
            raise RewardFailure(f"{sample.name}: the teacher at {args.rm_url} read other tokens than were sampled")
        sample.teacher_log_probs = said
    else:
        sample.teacher_log_probs = []
    return 0.0
