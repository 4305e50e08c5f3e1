"""--custom-rm-path slime.rewards.teacher.ask_teacher: on-policy distillation from a model that SGLang serves, at
--rm-url or as --rm-model.

The teacher reads the tokens of a sample as they were sampled, so it has the policy's vocabulary. What it thinks of each
response token goes into `teacher_log_probs`; the reward is 0, so that nothing else is learnt from.
"""

from __future__ import annotations

from typing import Any

from slime.rewards.errors import RewardFailure
from slime.rewards.http_service import ask


async def ask_teacher(args: Any, sample: Any, **_: Any) -> float:
    """Raises RewardFailure when the answer is not about the tokens that were sampled."""
    count, tokens = sample.response_length, list(sample.tokens)
    sample.teacher_log_probs = []
    if not count:
        return 0.0
    body = {
        "input_ids": tokens,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": len(tokens) - count - 1,
    }
    answer = await ask(args, sample.name, "/generate", body)
    try:
        entries = answer["meta_info"]["input_token_logprobs"][-count:]
        read = [(float(log_prob), token) for log_prob, token, *_ in entries]
    except (LookupError, TypeError, ValueError):
        raise RewardFailure(sample.name, f"the teacher answered {answer!r:.200}, no log-probabilities") from None
    # SGLang says 0 for the last token of a vocabulary (it means the hashes of images); its log-probability is right.
    wrong = [ours for (_, its), ours in zip(read, tokens[-count:], strict=False) if its not in (ours, 0)]
    if wrong or len(read) != count:
        raise RewardFailure(
            sample.name,
            f"the teacher read {len(read)} tokens, {len(wrong)} of them others than the {count} that"
            " were sampled: has it another vocabulary?",
        )
    sample.teacher_log_probs = [log_prob for log_prob, _ in read]
    return 0.0
