"""The samples of a micro-batch as wholes, wherever their tokens are.

Under context parallelism the response tokens of one sample are predicted on several ranks. Every rank of the group
asks the same of the same micro-batches in the same order, since what is asked here is collective there.

Shape suffixes: N samples · S response tokens of these samples, whole, concatenated · R those predicted on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from slime.data.batch import Batch


@dataclass(frozen=True, slots=True)
class Samples:
    batch: Batch
    positions_N: np.ndarray  # in the Batch
    lengths_N: Tensor  # int64, response tokens
    rewards_N: Tensor  # float32
    sample_R: Tensor  # int64, the sample 0..N-1 of each token
    place_R: Tensor  # int64, its place among S
    mask_S: Tensor  # float32, 0 or 1
    group: dist.ProcessGroup | None  # the ranks that share the tokens; None where one has all

    def __len__(self) -> int:
        return len(self.positions_N)

    def spread(self, values_N: Tensor) -> Tensor:
        """Each sample's value for each of its tokens on this rank, [R]."""
        return values_N[self.sample_R]

    def mean(self, values_R: Tensor, mask_R: Tensor) -> Tensor:
        """For each token the mean over its sample's unmasked tokens, 0 in a sample without any; [R], no gradient."""
        sums_2N = values_R.new_zeros(2, len(self), dtype=torch.float32)
        sums_2N.index_add_(1, self.sample_R, torch.stack([values_R.detach().float() * mask_R, mask_R]))
        self._add_up(sums_2N)
        return self.spread(sums_2N[0] / sums_2N[1].clamp(min=1.0))

    def sum(self, values_R: Tensor, mask_R: Tensor) -> Tensor:
        """The same for the sum."""
        sums_N = values_R.new_zeros(len(self), dtype=torch.float32)
        sums_N.index_add_(0, self.sample_R, values_R.detach().float() * mask_R)
        self._add_up(sums_N)
        return self.spread(sums_N)

    def whole(self, values_R: Tensor) -> Tensor:
        """The values of all ranks, [S]. A gradient flows back to this rank's values, through this rank alone."""
        whole_S = values_R.new_zeros(len(self.mask_S))
        whole_S[self.place_R] = values_R.detach()
        self._add_up(whole_S)
        return whole_S.index_copy(0, self.place_R, values_R) if values_R.requires_grad else whole_S

    def here(self, values_S: Tensor) -> Tensor:
        """This rank's part of values of whole samples, [R]."""
        return values_S[self.place_R]

    def split(self, values_S: Tensor) -> list[Tensor]:
        """A tensor for each sample, of values of whole samples."""
        return list(values_S.split(self.batch.response_lengths_N[self.positions_N].tolist()))

    def split_here(self, values_R: Tensor) -> list[Tensor]:
        """A tensor for each sample, of its tokens on this rank."""
        return list(values_R.split(torch.bincount(self.sample_R, minlength=len(self)).tolist()))

    def _add_up(self, sums: Tensor) -> None:
        if self.group is not None and sums.numel():
            dist.all_reduce(sums, group=self.group)
