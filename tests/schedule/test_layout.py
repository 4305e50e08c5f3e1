from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.schedule.layout import lay_out

SAMPLES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=6)  # prompt and response lengths


def arrays(*samples):
    prompts, responses = np.array(samples, dtype=np.int64).reshape(-1, 2).T
    return prompts + responses, responses


def test_two_samples_in_one_row():
    row = lay_out(*arrays((2, 1), (1, 3)))
    assert row.cu_seqlens.tolist() == [0, 3, 7]
    assert row.sequence_T.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert row.position_T.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert not row.padding_T.any()
    assert (row.sample_R.tolist(), row.position_R.tolist(), row.rows_R.tolist()) == (
        [0, 1, 1, 1],
        [2, 1, 2, 3],
        [1, 3, 4, 5],
    )


def test_the_row_is_filled_up_by_a_sequence_of_padding():
    row = lay_out(*arrays((2, 1)), row_multiple=8)
    assert row.cu_seqlens.tolist() == [0, 3, 8]
    assert row.padding_T.tolist() == [False] * 3 + [True] * 5


def test_chunks_of_two_context_parallel_ranks():
    # 6 tokens are padded to 8: chunks of 2, rank 0 has the outer ones.
    outer, inner = (lay_out(*arrays((3, 3)), cp_rank=rank, cp_size=2, row_multiple=4) for rank in range(2))
    assert outer.cu_seqlens.tolist() == inner.cu_seqlens.tolist() == [0, 8]
    assert (outer.position_T.tolist(), outer.padding_T.tolist()) == ([0, 1, 6, 7], [False, False, True, True])
    assert inner.position_T.tolist() == [2, 3, 4, 5]
    assert outer.position_R.tolist() == []
    assert (inner.position_R.tolist(), inner.rows_R.tolist()) == ([3, 4, 5], [0, 1, 2])


@pytest.mark.parametrize("cp_size", [1, 2, 4])
def test_no_samples_make_a_row_of_padding(cp_size):
    row = lay_out(*arrays(), cp_size=cp_size, row_multiple=2 * cp_size)
    assert row.padding_T.all() and len(row.padding_T) == 2
    assert len(row.rows_R) == 0


def test_a_response_without_a_prompt():
    with pytest.raises(ValueError, match="sample 1 of the micro-batch has no token before its response"):
        lay_out(np.array([3, 2]), np.array([1, 2]))


def test_a_row_that_context_parallel_ranks_cannot_divide():
    with pytest.raises(ValueError, match="not a multiple of 2 x 2"):
        lay_out(*arrays((1, 1)), cp_size=2, row_multiple=6)


@given(SAMPLES, st.sampled_from([1, 2, 3, 4]), st.integers(1, 5))
def test_every_token_is_in_one_place_and_predicted_where_its_predecessor_is(samples, cp_size, factor):
    lengths, responses = arrays(*samples)
    multiple = (2 * cp_size if cp_size > 1 else 1) * factor
    rows = [
        lay_out(lengths, responses, cp_rank=rank, cp_size=cp_size, row_multiple=multiple) for rank in range(cp_size)
    ]
    held, predicted = [], []
    for row in rows:
        assert len(row.sequence_T) * cp_size == row.cu_seqlens[-1] and row.cu_seqlens[-1] % multiple == 0
        held += zip(row.sequence_T[~row.padding_T], row.position_T[~row.padding_T], strict=True)
        for sample, position, at in zip(row.sample_R, row.position_R, row.rows_R, strict=True):
            assert (row.sequence_T[at], row.position_T[at]) == (sample, position - 1)
            predicted.append((sample, position))
    assert sorted(held) == [(i, p) for i, length in enumerate(lengths) for p in range(length)]
    assert sorted(predicted) == [
        (i, p) for i, length in enumerate(lengths) for p in range(length - responses[i], length)
    ]
