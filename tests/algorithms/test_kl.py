from __future__ import annotations

import math

import pytest
import torch

from slime.algorithms.kl import kl_estimate

HALF = torch.tensor([math.log(0.5)])  # the policy's probability
QUARTER = torch.tensor([math.log(0.25)])  # the base's


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("k1", math.log(2)),
        ("k2", math.log(2) ** 2 / 2),
        ("k3", 0.5 - 1 + math.log(2)),
        ("low_var_kl", 0.5 - 1 + math.log(2)),
    ],
)
def test_by_hand(kind, value):
    assert kl_estimate(HALF, QUARTER, kind).item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_equal_policies(kind):
    assert kl_estimate(HALF, HALF.clone(), kind).item() == 0


def test_low_var_kl_is_cut():
    assert kl_estimate(torch.tensor([-20.0]), torch.tensor([0.0]), "low_var_kl").item() == 10


@pytest.mark.parametrize("difference", [-95.0, -20.0, -3.0, 12.0])
def test_where_low_var_kl_is_cut_it_has_no_gradient(difference):
    """exp(95) is more than float32 holds: cut only after that, the gradient would be 0 * inf."""
    log_probs = torch.tensor([difference], requires_grad=True)
    kl_estimate(log_probs, torch.tensor([0.0]), "low_var_kl").sum().backward()
    assert log_probs.grad.item() == 0


def test_k3_of_policies_that_are_worlds_apart_is_finite():
    log_probs = torch.tensor([-95.0, -1.0], requires_grad=True)
    kl_R = kl_estimate(log_probs, torch.tensor([0.0, -1.0]), "k3", torch.tensor([120.0, 0.0]))
    kl_R.sum().backward()
    assert torch.isfinite(kl_R).all() and torch.isfinite(log_probs.grad).all()


def test_weighted_by_the_ratio_to_the_sampling_policy():
    assert kl_estimate(HALF, QUARTER, "k1", torch.tensor([math.log(3.0)])).item() == pytest.approx(
        3 * math.log(2), rel=1e-6
    )


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_over_the_policys_distribution(kind):
    policy, base = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    expected = (policy * (policy / base).log()).sum()
    torch.testing.assert_close((policy * kl_estimate(policy.log(), base.log(), kind)).sum(), expected)


def test_weighting_makes_the_gradient_that_of_the_exact_kl():
    logits, base, sampler = (
        torch.tensor([0.3, -0.2, 0.5], requires_grad=True),
        torch.tensor([0.2, 0.3, 0.5]),
        torch.tensor([0.6, 0.3, 0.1]),
    )
    log_policy = logits.log_softmax(-1)
    exact = torch.autograd.grad((log_policy.exp() * (log_policy - base.log())).sum(), logits, retain_graph=True)[0]
    estimate = (sampler * kl_estimate(log_policy, base.log(), "k3", log_policy - sampler.log())).sum()
    torch.testing.assert_close(torch.autograd.grad(estimate, logits)[0], exact)


def test_unknown_kind():
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(HALF, QUARTER, "k4")
