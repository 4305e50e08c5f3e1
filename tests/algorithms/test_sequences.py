from __future__ import annotations

import torch

from slime.algorithms.sequences import off_policy_mask, sequence_log_ratio


def test_gspo_takes_the_samples_ratio_and_the_tokens_gradient():
    log_ratio = torch.tensor([0.1, 0.3], requires_grad=True)
    ratio = sequence_log_ratio(log_ratio, log_ratio.mean().expand(2)).exp()
    torch.testing.assert_close(ratio, torch.tensor([0.2, 0.2]).exp())
    ratio.sum().backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.2, 0.2]).exp())


def test_gspo_has_the_gradient_of_equation_5_where_a_sample_has_one_advantage():
    def gradient(ratio_of):
        log_ratio = torch.tensor([0.1, 0.3, -0.5], requires_grad=True)
        (ratio_of(log_ratio) * 1.7).mean().backward()
        return log_ratio.grad

    ours = gradient(lambda x: sequence_log_ratio(x, x.mean().expand(3)).exp())
    torch.testing.assert_close(ours, gradient(lambda x: x.mean().exp()))


def test_samples_are_left_out_when_both_bad_and_unlikely():
    log_ratio = torch.tensor([-0.2, -0.2, 0.2, 0.2])
    advantages = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    assert off_policy_mask(log_ratio, advantages, 0.1).tolist() == [0, 1, 1, 1]
    assert off_policy_mask(log_ratio, advantages, 0.3).tolist() == [1, 1, 1, 1]


def test_no_advantage_is_not_a_bad_one():
    assert off_policy_mask(torch.tensor([-9.0]), torch.tensor([0.0]), 1e-4).tolist() == [1]
