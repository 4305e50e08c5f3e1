from __future__ import annotations

import math

import torch

from slime.algorithms.mismatch import mismatch


def test_by_hand():
    train, rollout = torch.tensor([math.log(0.5), -1.0]), torch.tensor([math.log(0.25), -1.0])
    difference, kl = mismatch(train, rollout, torch.ones(2))
    torch.testing.assert_close(difference, torch.tensor([math.log(2), 0.0]))
    torch.testing.assert_close(kl, torch.tensor([2 - 1 - math.log(2), 0.0]))


def test_masked_tokens_count_for_nothing_whatever_they_hold():
    difference, kl = mismatch(torch.tensor([-1.0, -1.0]), torch.tensor([float("nan"), -500.0]), torch.zeros(2))
    assert difference.tolist() == [0, 0] and kl.tolist() == [0, 0]
