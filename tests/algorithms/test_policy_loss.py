from __future__ import annotations

import math

import pytest
import torch

from slime.algorithms.policy_loss import cispo_loss, clipped_policy_loss


def loss_of(ratio, advantage, **clip):
    clip = {"eps_low": 0.2, "eps_high": 0.2} | clip
    loss, clipped = clipped_policy_loss(torch.tensor([math.log(ratio)]), torch.tensor([advantage]), **clip)
    return round(loss.item(), 5), clipped.item()


def test_ratio_one_gives_minus_the_advantage():
    assert loss_of(1.0, 2.5) == (-2.5, 0)


def test_within_the_range_the_ratio_counts():
    assert loss_of(1.1, 2.0) == (-2.2, 0)


def test_a_good_token_gains_nothing_above_the_range():
    assert loss_of(1.5, 2.0) == (-2.4, 1)


def test_a_bad_token_gains_nothing_below_the_range():
    assert loss_of(0.5, -2.0) == (1.6, 1)


def test_a_bad_token_is_punished_without_bound_above_the_range():
    assert loss_of(3.0, -2.0) == (6.0, 0)


def test_dual_clip_bounds_the_punishment():
    assert loss_of(5.0, -2.0, dual_clip=3.0) == (6.0, 0)


def test_dual_clip_leaves_good_tokens_alone():
    assert loss_of(1.5, 2.0, dual_clip=3.0) == (-2.4, 1)


def test_clip_higher():
    assert loss_of(1.25, 1.0, eps_high=0.28) == (-1.25, 0)


def test_no_gradient_where_the_clip_holds():
    log_ratio = torch.tensor([math.log(1.5), math.log(1.1)], requires_grad=True)
    clipped_policy_loss(log_ratio, torch.ones(2), eps_low=0.2, eps_high=0.2)[0].sum().backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, -1.1]))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("clip", [{}, {"dual_clip": 3.0}])
def test_a_ratio_beyond_all_numbers_has_no_gradient(advantage, clip):
    """exp(196) is more than float32 holds, and 0 times it would be NaN. The other token learns as it would alone."""
    log_ratio = torch.tensor([196.0, 0.1], requires_grad=True)
    loss_R, _ = clipped_policy_loss(log_ratio, torch.full([2], advantage), eps_low=0.2, eps_high=0.2, **clip)
    loss_R.sum().backward()
    assert torch.isfinite(loss_R).all()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, -advantage * math.exp(0.1)]))


def cispo_of(ratio, advantage, **clip):
    clip = {"eps_low": 0.2, "eps_high": 0.2} | clip
    log_probs = torch.tensor([-2.0], requires_grad=True)
    log_ratio = log_probs - log_probs.detach() + math.log(ratio)
    loss, clipped = cispo_loss(log_probs, log_ratio, torch.tensor([advantage]), **clip)
    loss.sum().backward()
    return round(log_probs.grad.item(), 5), clipped.item()


def test_cispo_weighs_the_gradient_by_the_ratio():
    assert cispo_of(1.1, 2.0) == (-2.2, 0)


def test_cispo_still_learns_where_the_ratio_is_clipped():
    assert cispo_of(1.5, 2.0) == (-2.4, 1)
    assert cispo_of(0.5, 2.0) == (-1.6, 1)


def test_cispo_without_a_bound_from_below():
    assert cispo_of(0.01, 2.0, eps_low=1.0) == (-0.02, 0)
