"""Samples of a micro-batch -> one packed row of tokens, and all that a loss needs of its response tokens.

The sequences of a row tile it: `cu_seqlens[-1]` is its length over all context-parallel ranks. Each is padded to a multiple of
2·cp (none without context parallelism), and a last sequence of padding fills the row up to a multiple that tensor parallelism
can divide. An empty micro-batch is one sequence of padding: its rank still takes part in every collective.

A response token is predicted at the row before its own: `rows_R` picks the hidden states whose logits are needed, no others.
Under context parallelism a rank has the response tokens that are predicted on it; everything with suffix R is of those.

Shape suffixes: N samples of the Batch · B sequences of a micro-batch · T tokens of its row on this rank · R response tokens
predicted on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from slime.algorithms.normalisation import sample_mean_weights
from slime.data.batch import Batch, Step


@dataclass(slots=True)
class MicroBatch:
    tokens_1T: Tensor
    positions_1T: Tensor  # within the sequence
    padding_1T: Tensor | None  # True where padding; None without any
    sequences: PackedSeqParams
    rows_R: Tensor
    targets_R: Tensor
    mask_R: Tensor  # float32, 0 or 1
    weights_R: Tensor  # float32; a sum of weight x value is a sum over samples of their means over unmasked tokens
    rewards_R: Tensor  # float32, that of the token's sample
    step: Step
    rollout_log_probs_R: Tensor | None
    train_metadata: list[dict[str, Any] | None] | None
    # Filled in by the trainer:
    log_probs_R: Tensor | None = None  # of the weights at the begin of the rollout's training
    ref_log_probs_R: Tensor | None = None
    advantages_R: Tensor | None = None


class Packer:
    """Packs micro-batches of one Batch; all sizes are found with NumPy, without a loop over samples or tokens.

    Raises:
        ValueError: a sample without a prompt token: nothing would predict its first response token.
    """

    def __init__(
        self, batch: Batch, *, device: torch.device, cp_rank: int = 0, cp_size: int = 1, tp_size: int = 1, pad_multiple: int = 1
    ) -> None:
        self.batch = batch
        self.device = device
        self.cp_rank, self.cp_size = cp_rank, cp_size
        self.sequence_multiple = 2 * cp_size if cp_size > 1 else 1
        self.row_multiple = lcm(self.sequence_multiple, cp_size * tp_size, pad_multiple)
        self.lengths_N = batch.total_lengths_N.astype(np.int64)
        self.responses_N = batch.response_lengths_N.astype(np.int64)
        promptless = np.flatnonzero(self.lengths_N <= self.responses_N)
        if promptless.size:
            raise ValueError(f"sample {batch.sample_ids_N[promptless[0]]} has no prompt token before its response")
        self.starts_N = np.cumsum(self.lengths_N) - self.lengths_N
        self.response_starts_N = np.cumsum(self.responses_N) - self.responses_N
        self.weights = sample_mean_weights(batch.loss_mask_R, self.responses_N)

    def pack(self, samples: list[int], step: Step) -> MicroBatch:
        """One micro-batch; `samples` are positions in the Batch."""
        batch, chosen = self.batch, np.asarray(samples, dtype=np.int64)
        lengths_B, responses_B = self.lengths_N[chosen], self.responses_N[chosen]
        padded_B = _round_up(lengths_B, self.sequence_multiple)
        filling = _round_up(max(int(padded_B.sum()), 1), self.row_multiple) - int(padded_B.sum())
        all_lengths = np.append(padded_B, filling) if filling else padded_B
        cu_seqlens = np.concatenate(([0], np.cumsum(all_lengths)))

        # Tokens of this rank: which sequence, where in it.
        sequence_T, position_T = self._mine(all_lengths)
        starts_B = self.starts_N[chosen]
        has_padding = cu_seqlens[-1] > lengths_B.sum()
        if has_padding:
            real_T = position_T < np.append(lengths_B, 0)[sequence_T]
            tokens_T = np.zeros(len(sequence_T), dtype=np.int64)
            tokens_T[real_T] = batch.tokens_T[np.append(starts_B, 0)[sequence_T[real_T]] + position_T[real_T]]
        else:
            tokens_T = batch.tokens_T[starts_B[sequence_T] + position_T].astype(np.int64)

        # Response tokens: which sequence, where in the response, and where they are predicted.
        sequence_R = np.repeat(np.arange(len(chosen)), responses_B)
        offset_R = np.arange(len(sequence_R)) - np.repeat(np.cumsum(responses_B) - responses_B, responses_B)
        predicted_at_R = (lengths_B - responses_B - 1)[sequence_R] + offset_R
        rows_R, here_R = self._rows(cu_seqlens, padded_B, sequence_R, predicted_at_R)
        if here_R is not None:
            sequence_R, offset_R, predicted_at_R = sequence_R[here_R], offset_R[here_R], predicted_at_R[here_R]
        source_R = self.response_starts_N[chosen][sequence_R] + offset_R
        targets_R = batch.tokens_T[starts_B[sequence_R] + predicted_at_R + 1].astype(np.int64)

        seqlens, longest = self._tensor(cu_seqlens.astype(np.int32)), int(all_lengths.max())
        return MicroBatch(
            tokens_1T=self._tensor(tokens_T).unsqueeze(0),
            positions_1T=self._tensor(position_T).unsqueeze(0),
            padding_1T=self._tensor(~real_T).unsqueeze(0) if has_padding else None,
            sequences=PackedSeqParams(
                qkv_format="thd", cu_seqlens_q=seqlens, cu_seqlens_kv=seqlens, max_seqlen_q=longest, max_seqlen_kv=longest
            ),
            rows_R=self._tensor(rows_R),
            targets_R=self._tensor(targets_R),
            mask_R=self._tensor(batch.loss_mask_R[source_R]),
            weights_R=self._tensor(self.weights[source_R]),
            rewards_R=self._tensor(batch.rewards_N[chosen][sequence_R]),
            step=step,
            rollout_log_probs_R=(
                None if batch.rollout_log_probs_R is None else self._tensor(batch.rollout_log_probs_R[source_R])
            ),
            train_metadata=None if batch.train_metadata is None else [batch.train_metadata[i] for i in samples],
        )

    def _mine(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sequence of, and position in the whole sequence of, each token of this rank's row: chunks r and 2·cp-1-r of each."""
        shares = lengths // self.cp_size
        sequence_T = np.repeat(np.arange(len(lengths)), shares)
        position_T = np.arange(len(sequence_T)) - np.repeat(np.cumsum(shares) - shares, shares)
        if self.cp_size > 1:
            chunk_T = (shares // 2)[sequence_T]
            before_T = np.where(position_T < chunk_T, self.cp_rank, 2 * self.cp_size - 2 - self.cp_rank)
            position_T = position_T + before_T * chunk_T
        return sequence_T, position_T

    def _rows(
        self, cu_seqlens: np.ndarray, padded_B: np.ndarray, sequence_R: np.ndarray, position_R: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows of this rank that hold the given positions, and which of them it holds (None: all)."""
        starts_R = cu_seqlens[sequence_R]
        if self.cp_size == 1:
            return starts_R + position_R, None
        chunk_R = (padded_B // (2 * self.cp_size))[sequence_R]
        index_R = position_R // chunk_R
        first_R = index_R < self.cp_size
        here_R = np.where(first_R, index_R, 2 * self.cp_size - 1 - index_R) == self.cp_rank
        rows_R = starts_R // self.cp_size + position_R - index_R * chunk_R + np.where(first_R, 0, chunk_R)
        return rows_R[here_R], here_R

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _round_up(number: Any, multiple: int) -> Any:
    return -(-number // multiple) * multiple
