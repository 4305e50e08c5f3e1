"""Numbers of response tokens that one trainer has and another needs: values of the critic, returns of the policy.

Both have the same layout, so rank r of one holds the tokens of rank r of the other, in the same micro-batches.

Shape suffix: R response tokens of all micro-batches of this rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slime.training.packing import MicroBatch


def collect(batches: Sequence[MicroBatch], field: str) -> np.ndarray:
    """The field of all micro-batches, float32 [R]."""
    return torch.cat([getattr(batch, field).float() for batch in batches]).cpu().numpy()


def distribute(values_R: np.ndarray, batches: Sequence[MicroBatch], field: str) -> None:
    """Sets the field of each micro-batch. Raises ValueError when they are not the tokens that were collected."""
    lengths = [len(batch.mask_R) for batch in batches]
    if len(values_R) != sum(lengths):
        raise ValueError(
            f"{field.removesuffix('_R')} of {len(values_R)} response tokens came from the rank whose place is this"
            f" one's, which has {sum(lengths)}: policy and critic must be divided alike"
        )
    of_batches = torch.from_numpy(values_R.copy()).split(lengths)
    for batch, of_batch in zip(batches, of_batches, strict=True):
        setattr(batch, field, of_batch.to(batch.mask_R))
