"""What users' functions see of micro-batches: a dict of lists, one entry a sample.

Tensors of response tokens, on the trainer's device, under the names of hooks in this field. A column that this run
does not have is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slime.training.packing import MicroBatch

OF_TOKENS = {
    "log_probs": "log_probs_R",
    "ref_log_probs": "ref_log_probs_R",
    "rollout_log_probs": "rollout_log_probs_R",
    "teacher_log_probs": "teacher_log_probs_R",
    "entropy": "entropy_R",
    "kl": "kl_R",
    "values": "values_R",
    "advantages": "advantages_R",
    "returns": "returns_R",
}


def columns(batches: Sequence[MicroBatch], *, whole: bool) -> dict[str, list[Any]]:
    """Of all samples of the micro-batches, in order.

    With `whole`, a sample has all its response tokens, collected from the context-parallel ranks; else those of this
    rank, in the order of the scores. `tokens` (prompt and response) and the lengths are those of the sample either way.
    """
    data: dict[str, list[Any]] = {name: [] for name in ("tokens", "total_lengths", "response_lengths", "rewards")}
    data["loss_masks"] = []
    for batch in batches:
        samples, of_batch = batch.samples, batch.samples.batch
        ends_N = np.cumsum(of_batch.total_lengths_N)
        for i in samples.positions_N.tolist():
            length = int(of_batch.total_lengths_N[i])
            data["tokens"].append(torch.from_numpy(of_batch.tokens_T[ends_N[i] - length : ends_N[i]].astype(np.int64)))
            data["total_lengths"].append(length)
            data["response_lengths"].append(int(of_batch.response_lengths_N[i]))
            data["rewards"].append(float(of_batch.rewards_N[i]))
            if of_batch.train_metadata is not None:
                data.setdefault("train_metadata", []).append(of_batch.train_metadata[i])
        data["loss_masks"] += samples.split(samples.mask_S) if whole else samples.split_here(batch.mask_R)
        for name, field in OF_TOKENS.items():
            values_R = getattr(batch, field)
            if values_R is not None:
                parts = samples.split(samples.whole(values_R)) if whole else samples.split_here(values_R)
                data.setdefault(name, []).extend(parts)
    return data
