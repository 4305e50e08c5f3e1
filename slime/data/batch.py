"""Batch: what travels from rollout to training, one a data-parallel rank, through Ray's object store by reference.

A sample that fanned out is several samples here, the parts of a whole. A loss that is a mean over samples takes the
mean over all tokens of a whole, so that it counts once, however many parts it is in.

Shape suffixes: N samples of this rank · T tokens of all of them, concatenated · R response tokens, concatenated ·
L layers · K experts that a token goes to.
All arrays are NumPy, so that a reader on the same machine maps the store's memory and copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slime.data.sample import SampleError


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of one rank: its micro-batches, and the sizes of the whole global batch of that step.

    The denominators are global and known before the first forward pass; that is what makes the loss and its gradient
    independent of how samples were packed and sharded: every rank only sums.
    """

    micro_batches: list[
        list[int]
    ]  # positions 0..N-1 in the Batch; the same count on every rank, possibly with empty ones
    num_samples: int  # samples of the global batch, over all ranks
    num_wholes: int  # the same, but the parts of a sample that fanned out are one; means over samples divide by this
    num_tokens: int  # unmasked response tokens of the global batch, over all ranks


@dataclass(frozen=True, slots=True)
class Batch:
    tokens_T: np.ndarray  # int32, prompt and response of each sample in turn
    total_lengths_N: np.ndarray  # int32
    response_lengths_N: np.ndarray  # int32
    loss_mask_R: np.ndarray  # float32, 0 or 1
    rewards_N: np.ndarray  # float32, after group normalisation
    raw_rewards_N: np.ndarray  # float32
    group_ids_N: np.ndarray  # int64
    sample_ids_N: np.ndarray  # int64
    truncated_N: np.ndarray  # bool
    whole_sizes_N: np.ndarray  # int64, unmasked tokens of the whole that it is, or is a part of, wherever the parts are
    steps: list[Step]
    rollout_log_probs_R: np.ndarray | None = None  # float32, of the engine that sampled
    teacher_log_probs_R: np.ndarray | None = None  # float32, of the teacher of an on-policy distillation
    routed_experts_TLK: np.ndarray | None = None  # int16, the experts that the engine chose
    train_metadata: list[dict[str, Any] | None] | None = None  # one a sample; reaches a custom loss
    scored: list[list[int]] | None = None  # micro-batches of passes without gradients; None: those of the steps

    def __len__(self) -> int:
        return len(self.total_lengths_N)

    def check(self, vocab_size: int) -> None:
        """Raises SampleError, naming the first sample, for a token that the model does not have, and for a log-prob or
        a mask that is no finite number: further on nobody could say whose it was."""
        strange_T = (self.tokens_T < 0) | (self.tokens_T >= vocab_size)
        if strange_T.any():
            at = int(strange_T.argmax())
            whose = self._name(self.total_lengths_N, at)
            raise SampleError(f"{whose}: token {self.tokens_T[at]} is none of the model's, 0 to {vocab_size - 1}")
        for name in ("loss_mask_R", "rollout_log_probs_R", "teacher_log_probs_R"):
            values_R = getattr(self, name)
            if values_R is not None and not (finite_R := np.isfinite(values_R)).all():
                at = int(finite_R.argmin())
                whose = self._name(self.response_lengths_N, at)
                raise SampleError(f"{whose}: {name.removesuffix('_R')} holds {values_R[at]}, no finite number")

    def _name(self, lengths_N: np.ndarray, position: int) -> str:
        """Of the sample that has this position where all are concatenated."""
        at = int(np.searchsorted(np.cumsum(lengths_N), position, side="right"))
        return f"sample {self.sample_ids_N[at]} (group {self.group_ids_N[at]})"
