"""Samples of a micro-batch -> tensors: one packed row of tokens, and all that a loss needs of its response tokens.

`rows_R` picks the hidden states whose logits predict response tokens; no other logits are needed. Under context
parallelism a rank has the response tokens that are predicted on it. An empty micro-batch is a row of padding with no
response token: its rank still takes part in every collective.

Shape suffixes: N samples of the Batch · T tokens of the row on this rank · R response tokens predicted on this rank ·
L layers · K experts of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from slime.algorithms.normalisation import sample_mean_weights
from slime.data.batch import Batch, Step
from slime.schedule.layout import lay_out
from slime.training.samples import Samples


@dataclass(slots=True)
class MicroBatch:
    num_samples: int
    tokens_1T: Tensor
    positions_1T: Tensor  # within the sample
    padding_1T: Tensor | None  # True where padding; None without any
    sequences: PackedSeqParams
    rows_R: Tensor
    targets_R: Tensor
    mask_R: Tensor  # float32, 0 or 1
    weights_R: Tensor  # float32; the sum of weight x value is the sum over samples of their means over unmasked tokens
    step: Step
    samples: Samples
    source_R: np.ndarray  # place of each response token among those of the Batch
    rollout_log_probs_R: Tensor | None
    teacher_log_probs_R: Tensor | None  # from the rollout, or filled in by the trainer
    engine_experts_TLK: Tensor | None = None  # int16 in host memory, all layers
    # Filled in by the trainer:
    experts: dict[int, Tensor] | None = None  # of each layer here, chosen when log_probs_R were made; see routing.py
    log_probs_R: Tensor | None = None  # under the weights from before the rollout's training
    entropy_R: Tensor | None = None  # under the same
    ref_log_probs_R: Tensor | None = None
    kl_R: Tensor | None = None  # estimate of KL(old policy, reference); 0 where masked
    opd_reverse_kl_R: Tensor | None = None  # the same to the teacher
    values_R: Tensor | None = None  # of the critic, from before the rollout's training
    advantages_R: Tensor | None = None
    returns_R: Tensor | None = None


class Packer:
    """Packs micro-batches of a Batch for one rank. `tp_size` counts ranks that divide the row (sequence parallel).

    Raises:
        ValueError: a sample without a prompt token: nothing would predict its first response token.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        device: torch.device,
        cp_rank: int = 0,
        cp_size: int = 1,
        cp_group: dist.ProcessGroup | None = None,
        tp_size: int = 1,
        pad_multiple: int = 1,
    ) -> None:
        self.batch = batch
        self.device = device
        self.cp_group = cp_group
        self.place = {
            "cp_rank": cp_rank,
            "cp_size": cp_size,
            "row_multiple": lcm((2 * cp_size if cp_size > 1 else 1) * tp_size, pad_multiple),
        }
        self.lengths_N = batch.total_lengths_N.astype(np.int64)
        self.responses_N = batch.response_lengths_N.astype(np.int64)
        promptless = np.flatnonzero(self.responses_N >= self.lengths_N)
        if promptless.size:
            raise ValueError(f"sample {batch.sample_ids_N[promptless[0]]} has no prompt token before its response")
        self.starts_N = np.cumsum(self.lengths_N) - self.lengths_N
        # From the position of a response token in its sample to its place among all response tokens.
        self.shift_N = np.cumsum(self.responses_N) - self.lengths_N
        self.weights = sample_mean_weights(batch.loss_mask_R, self.responses_N, batch.whole_sizes_N)

    def pack(self, samples: list[int], step: Step) -> MicroBatch:
        """One micro-batch of a step; `samples` are positions in the Batch."""
        batch, chosen = self.batch, np.asarray(samples, dtype=np.int64)
        row = lay_out(self.lengths_N[chosen], self.responses_N[chosen], **self.place)
        has_padding = bool(row.padding_T.any())
        real = ~row.padding_T if has_padding else slice(None)
        tokens_T = np.zeros(len(row.sequence_T), dtype=np.int64)
        source_T = self.starts_N[chosen][row.sequence_T[real]] + row.position_T[real]
        tokens_T[real] = batch.tokens_T[source_T]
        targets_R = batch.tokens_T[self.starts_N[chosen][row.sample_R] + row.position_R].astype(np.int64)
        source_R = self.shift_N[chosen][row.sample_R] + row.position_R
        responses_N = self.responses_N[chosen]
        # From the place of a response token among those of the micro-batch to its place among all.
        shift_N = self.shift_N[chosen] + self.lengths_N[chosen] - np.cumsum(responses_N)
        source_S = np.arange(responses_N.sum()) + np.repeat(shift_N, responses_N)
        place_R = source_R - shift_N[row.sample_R]
        seqlens, longest = self._tensor(row.cu_seqlens.astype(np.int32)), int(np.diff(row.cu_seqlens).max())
        return MicroBatch(
            num_samples=len(samples),
            tokens_1T=self._tensor(tokens_T).unsqueeze(0),
            positions_1T=self._tensor(row.position_T).unsqueeze(0),
            padding_1T=self._tensor(row.padding_T).unsqueeze(0) if has_padding else None,
            sequences=PackedSeqParams(
                qkv_format="thd",
                cu_seqlens_q=seqlens,
                cu_seqlens_kv=seqlens,
                max_seqlen_q=longest,
                max_seqlen_kv=longest,
            ),
            rows_R=self._tensor(row.rows_R),
            targets_R=self._tensor(targets_R),
            mask_R=self._tensor(batch.loss_mask_R[source_R]),
            weights_R=self._tensor(self.weights[source_R]),
            step=step,
            samples=Samples(
                batch=batch,
                positions_N=chosen,
                lengths_N=self._tensor(responses_N),
                rewards_N=self._tensor(batch.rewards_N[chosen]),
                sample_R=self._tensor(row.sample_R),
                place_R=self._tensor(place_R),
                mask_S=self._tensor(batch.loss_mask_R[source_S]),
                group=self.cp_group,
            ),
            source_R=source_R,
            rollout_log_probs_R=self._column(batch.rollout_log_probs_R, source_R),
            teacher_log_probs_R=self._column(batch.teacher_log_probs_R, source_R),
            engine_experts_TLK=self._experts(source_T, real, len(tokens_T)),
        )

    def _experts(self, source_T: np.ndarray, real: np.ndarray | slice, num_tokens: int) -> Tensor | None:
        """Padding goes to the first experts."""
        if self.batch.routed_experts_TLK is None:
            return None
        num_layers, topk = self.batch.routed_experts_TLK.shape[1:]
        experts_TLK = np.tile(np.arange(topk, dtype=np.int16), (num_tokens, num_layers, 1))
        experts_TLK[real] = self.batch.routed_experts_TLK[source_T]
        return torch.from_numpy(experts_TLK)

    def _column(self, values_R: np.ndarray | None, source_R: np.ndarray) -> Tensor | None:
        return None if values_R is None else self._tensor(values_R[source_R])

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
