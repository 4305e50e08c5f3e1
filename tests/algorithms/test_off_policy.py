from __future__ import annotations

import pytest
import torch

from slime.algorithms.off_policy import masked_weights, truncated_weights

LOG_RATIO = torch.tensor([1.0, 1.5, 3.0, 0.1]).log()


def test_truncated():
    assert truncated_weights(LOG_RATIO, 0.0, 2.0).tolist() == pytest.approx([1, 1.5, 2, 0.1])
    assert truncated_weights(LOG_RATIO, 0.5, 2.0).tolist() == pytest.approx([1, 1.5, 2, 0.5])


def test_masked():
    assert masked_weights(LOG_RATIO, 0.5, 2.0).tolist() == pytest.approx([1, 1.5, 0, 0])


@pytest.mark.parametrize("weights", [truncated_weights, masked_weights])
def test_weights_have_no_gradient(weights):
    assert not weights(torch.zeros(2, requires_grad=True), 0.5, 2.0).requires_grad
