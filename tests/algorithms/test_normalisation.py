from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slime.algorithms.normalisation import sample_mean_weights


def test_by_hand():
    mask, lengths = np.array([1, 1, 0, 1, 1, 1, 1, 0], dtype=np.float32), np.array([3, 4, 1])
    weights = sample_mean_weights(mask, lengths, np.array([2, 4, 0]))
    np.testing.assert_allclose(weights, [0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.25, 0])


def test_parts_of_one_sample():
    """The mean over all six tokens, as if both were one sample."""
    mask, lengths = np.array([1, 1, 0, 1, 1, 1, 1], dtype=np.float32), np.array([3, 4])
    np.testing.assert_allclose(sample_mean_weights(mask, lengths, np.array([6, 6])), mask / 6)


def test_a_sample_without_unmasked_tokens_counts_zero():
    weights = sample_mean_weights(np.zeros(3, dtype=np.float32), np.array([3]), np.array([0]))
    assert (weights == 0).all()


def test_samples_without_tokens():
    lengths = np.array([0, 2, 0])
    np.testing.assert_allclose(sample_mean_weights(np.ones(2, dtype=np.float32), lengths, lengths), [0.5, 0.5])
    none = np.zeros(0, dtype=np.int64)
    assert sample_mean_weights(np.zeros(0, dtype=np.float32), none, none).shape == (0,)


@given(st.lists(st.lists(st.booleans(), max_size=8), min_size=1, max_size=8), st.integers(0, 7))
def test_the_mean_of_each_sample_whatever_it_is_packed_with(masks, cut):
    mask = np.array([bit for one in masks for bit in one], dtype=np.float32)
    lengths = np.array([len(one) for one in masks])
    values = np.arange(len(mask), dtype=np.float64) ** 2
    sizes = np.array([sum(one) for one in masks])
    together = (sample_mean_weights(mask, lengths, sizes) * values).sum()
    tokens = lengths[:cut].sum()
    apart = sum(
        (sample_mean_weights(mask[part], lengths[of], sizes[of]) * values[part]).sum()
        for part, of in ((slice(None, tokens), slice(None, cut)), (slice(tokens, None), slice(cut, None)))
    )
    means = [
        v[m > 0].mean()
        for v, m in zip(np.split(values, np.cumsum(lengths)[:-1]), np.split(mask, np.cumsum(lengths)[:-1]), strict=True)
        if m.any()
    ]
    np.testing.assert_allclose([together, apart], [sum(means)] * 2, rtol=1e-5)
