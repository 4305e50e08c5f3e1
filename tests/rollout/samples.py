"""Samples as a rollout leaves them."""

from __future__ import annotations

from typing import Any

from slime.data.sample import Sample, Status


def finished(index: int, said: list[int], *, group: int = 0, reward: Any = 0.0, **fields: Any) -> Sample:
    """A completed sample of the prompt [1, 2] that says these tokens, whose log-probs are -token/10."""
    return Sample(
        **{
            "group_index": group,
            "index": index,
            "rollout_id": 0,
            "tokens": [1, 2, *said],
            "response_length": len(said),
            "reward": reward,
            "rollout_log_probs": [-token / 10 for token in said],
            "status": Status.COMPLETED,
            **fields,
        }
    )
