from __future__ import annotations

import pytest
import torch

from slime.algorithms.value_loss import clipped_value_loss


def loss_of(value, old, target, clip=0.2):
    loss, clipped = clipped_value_loss(*(torch.tensor([x]) for x in (value, old, target)), clip)
    return loss.item(), clipped.item()


def test_near_the_old_value_it_is_half_the_squared_error():
    assert loss_of(1.1, 1.0, 3.1) == (pytest.approx(2.0), 0)


def test_a_step_towards_the_target_gains_nothing_beyond_the_clip():
    assert loss_of(2.0, 1.0, 3.0) == (pytest.approx(1.8**2 / 2), 1)


def test_a_step_away_from_the_target_is_punished_in_full():
    assert loss_of(0.0, 1.0, 3.0) == (pytest.approx(4.5), 0)


def test_no_gradient_where_the_clip_holds():
    values = torch.tensor([2.0, 1.1], requires_grad=True)
    clipped_value_loss(values, torch.ones(2), torch.full((2,), 3.0), 0.2)[0].sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.0, 1.1 - 3.0]))
