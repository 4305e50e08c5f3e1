from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime.algorithms.whitening import moments, whiten

VALUES, MASK = torch.tensor([1.0, 2.0, 100.0, 3.0, 4.0]), torch.tensor([1.0, 1, 0, 1, 1])


def test_by_hand():
    white = whiten(VALUES, moments(VALUES, MASK))  # mean 2.5, variance 5/3
    torch.testing.assert_close(white[[0, 1, 3, 4]], torch.tensor([-1.161895, -0.387298, 0.387298, 1.161895]))


@pytest.mark.parametrize("mask", [torch.zeros(5), torch.tensor([0.0, 1, 0, 0, 0])])
def test_too_few_values_for_a_variance(mask):
    assert (whiten(VALUES, moments(VALUES, mask)) == 0).all()


def test_equal_values_give_zero():
    assert whiten(torch.full((4,), 3.0), moments(torch.full((4,), 3.0), torch.ones(4))).abs().max() == 0


@given(st.lists(st.tuples(st.floats(-10, 10, width=32), st.booleans()), min_size=2, max_size=20), st.integers(0, 20))
def test_the_same_for_any_sharding(tokens, cut):
    values, mask = torch.tensor([v for v, _ in tokens]), torch.tensor([float(m) for _, m in tokens])
    whole = whiten(values, moments(values, mask))
    shares = moments(values[:cut], mask[:cut]) + moments(values[cut:], mask[cut:])
    torch.testing.assert_close(torch.cat([whiten(values[:cut], shares), whiten(values[cut:], shares)]), whole)
