"""Numbers that no model could have given are found while it is known whose they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slime.data.batch import Batch
from slime.data.sample import SampleError

BATCH = Batch(
    tokens_T=np.array([1, 2, 3, 4, 5, 0], np.int32),
    total_lengths_N=np.array([2, 3, 1], np.int32),
    response_lengths_N=np.array([1, 2, 0], np.int32),
    loss_mask_R=np.ones(3, np.float32),
    rewards_N=np.zeros(3, np.float32),
    raw_rewards_N=np.zeros(3, np.float32),
    group_ids_N=np.array([7, 8, 9]),
    sample_ids_N=np.array([70, 80, 90]),
    truncated_N=np.zeros(3, np.bool_),
    whole_sizes_N=np.array([1, 2, 0]),
    steps=[],
)


def test_sound_numbers_pass():
    BATCH.check(vocab_size=6)


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("tokens_T", [1, 2, 3, 6, 9, 0], r"sample 80 \(group 8\): token 6 is none of the model's, 0 to 5"),
        ("tokens_T", [1, 2, 3, 4, 5, -1], r"sample 90 \(group 9\): token -1 is none"),
        (
            "rollout_log_probs_R",
            [0, -1, np.nan],
            r"sample 80 \(group 8\): rollout_log_probs holds nan, no finite number",
        ),
        ("teacher_log_probs_R", [-np.inf, 0, np.inf], r"sample 70 .*: teacher_log_probs holds -inf"),
        ("loss_mask_R", [np.nan, 1, 1], r"sample 70 .*: loss_mask holds nan"),
    ],
)
def test_others_are_named(field, values, message):
    broken = replace(BATCH, **{field: np.array(values, np.int32 if field == "tokens_T" else np.float32)})
    with pytest.raises(SampleError, match=message):
        broken.check(vocab_size=6)
