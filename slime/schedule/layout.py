"""Where each token of a micro-batch goes: one packed row for each context-parallel rank.

Invariants
- The sequences tile the row: the last of `cu_seqlens` is its length over all context-parallel ranks.
- Each sequence is padded to a multiple of 2·cp (not at all without context parallelism), and a last sequence of nothing
  but padding fills the row up to `row_multiple`. No samples at all make one such sequence: an empty micro-batch still
  has a row.
- Rank r of cp holds chunks r and 2·cp-1-r of the 2·cp chunks of each sequence (zig-zag), so that causal attention is
  the same work on every rank.
- A response token is predicted at the row before its own, and belongs to the rank that holds that row.

Shape suffixes: B samples of the micro-batch · T tokens of this rank's row · R response tokens predicted on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """All int64. Positions are those within a sample."""

    cu_seqlens: np.ndarray  # begin of each sequence, and the end of the last, over all context-parallel ranks
    sequence_T: np.ndarray  # the last one may be padding alone: B, where the samples are 0..B-1
    position_T: np.ndarray
    padding_T: np.ndarray  # bool
    sample_R: np.ndarray
    position_R: np.ndarray  # of the token itself
    rows_R: np.ndarray  # index into the row of this rank, where the token is predicted


def lay_out(
    lengths_B: np.ndarray, responses_B: np.ndarray, *, cp_rank: int = 0, cp_size: int = 1, row_multiple: int = 1
) -> Row:
    """Lays out samples of the given lengths (tokens, prompt and response) and response lengths.

    `row_multiple` is one of 2·cp wherever cp > 1. Every response must have a token before it.
    """
    sequence_multiple = 2 * cp_size if cp_size > 1 else 1
    if row_multiple % sequence_multiple:
        raise ValueError(f"row_multiple is {row_multiple}, not a multiple of 2 x {cp_size} context-parallel ranks")
    if (responses_B >= lengths_B).any():
        raise ValueError(
            f"sample {int(np.argmax(responses_B >= lengths_B))} of the micro-batch has no token before its response"
        )
    padded = -(-lengths_B // sequence_multiple) * sequence_multiple
    used = int(padded.sum())
    filling = -(-max(used, 1) // row_multiple) * row_multiple - used
    if filling:
        padded = np.append(padded, filling)
    cu_seqlens = np.concatenate(([0], np.cumsum(padded)))

    shares = padded // cp_size
    sequence_T = np.repeat(np.arange(len(padded)), shares)
    position_T = np.arange(len(sequence_T)) - (cu_seqlens[:-1] // cp_size)[sequence_T]
    if cp_size > 1:
        chunk_T = (shares // 2)[sequence_T]
        position_T += np.where(position_T < chunk_T, cp_rank, 2 * cp_size - 2 - cp_rank) * chunk_T
    lengths = np.append(lengths_B, 0) if filling else lengths_B

    sample_R = np.repeat(np.arange(len(lengths_B)), responses_B)
    offset_R = np.arange(len(sample_R)) - (np.cumsum(responses_B) - responses_B)[sample_R]
    position_R = (lengths_B - responses_B)[sample_R] + offset_R
    rows_R = cu_seqlens[sample_R] + position_R - 1
    if cp_size > 1:
        chunk_R = (padded // (2 * cp_size))[sample_R]
        index_R = (position_R - 1) // chunk_R
        mine_R = np.minimum(index_R, 2 * cp_size - 1 - index_R) == cp_rank
        second_R = (index_R >= cp_size) * chunk_R
        rows_R = cu_seqlens[sample_R] // cp_size + second_R + (position_R - 1) % chunk_R
        sample_R, position_R, rows_R = sample_R[mine_R], position_R[mine_R], rows_R[mine_R]
    return Row(cu_seqlens, sequence_T, position_T, position_T >= lengths[sequence_T], sample_R, position_R, rows_R)
