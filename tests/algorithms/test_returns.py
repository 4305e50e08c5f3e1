from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.algorithms.returns import CHUNK, discounted_returns, discounted_sums, gae, token_rewards

ONE_SAMPLE = torch.tensor([4])
AROUND_A_TOOL = torch.tensor([1.0, 0, 0, 1])


def slow_sums(values, lengths, decay):
    """Token by token, in Python."""
    sums, end = [], 0
    for length in lengths:
        begin, end, running, of_sample = end, end + length, 0.0, []
        for value in reversed(values[begin:end]):
            running = value + decay * running
            of_sample.append(running)
        sums += reversed(of_sample)
    return sums


def slow_gae(rewards, values, mask, lengths, gamma, lambd):
    advantages, end = [0.0] * len(rewards), 0
    for length in lengths:
        begin, end = end, end + length
        running = next_value = 0.0
        for t in reversed(range(begin, end)):
            if mask[t]:
                running = rewards[t] + gamma * next_value - values[t] + gamma * lambd * running
                next_value, advantages[t] = values[t], running
    return advantages


def test_kl_counts_on_unmasked_tokens_only():
    """Case 24: mask [1, 0, 0, 1], KL 1 everywhere, gamma .9. The reward is 2."""
    rewards = token_rewards(torch.tensor([2.0]), torch.ones(4), AROUND_A_TOOL, ONE_SAMPLE)
    assert rewards.tolist() == [-1, 0, 0, 1]
    returns = discounted_returns(rewards, AROUND_A_TOOL, ONE_SAMPLE, gamma=0.9)
    assert returns.tolist() == pytest.approx([-1 + 0.9 * 1, 0, 0, 1])


def test_the_reward_goes_to_the_last_unmasked_token_of_its_own_sample():
    lengths = torch.tensor([3, 0, 2, 1])
    mask = torch.tensor([1.0, 1, 0, 0, 0, 1])
    rewards = token_rewards(torch.tensor([5.0, 6, 7, 8]), torch.zeros(6), mask, lengths)
    assert rewards.tolist() == [0, 5, 0, 0, 0, 8]  # the third is all masked: its reward goes nowhere, and not astray


@pytest.mark.parametrize("penalty", [float("inf"), float("nan"), -1e30])
def test_what_a_masked_token_holds_does_not_matter(penalty):
    penalties = torch.tensor([0.5, penalty, penalty, 0.5])
    rewards = token_rewards(torch.tensor([1.0]), penalties, AROUND_A_TOOL, ONE_SAMPLE)
    assert rewards.tolist() == [-0.5, 0, 0, 0.5]
    advantages, returns = gae(penalties, penalties, AROUND_A_TOOL, ONE_SAMPLE, gamma=1.0, lambd=1.0)
    assert advantages.tolist() == [0.5, 0, 0, 0] and returns.tolist() == [1.0, 0, 0, 0.5]


def test_gae_by_hand():
    """Values 1, 2, 3 and a reward of 10 at the end; gamma .5, lambd .5: delta = .5·2-1, .5·3-2, 10-3."""
    rewards, values = torch.tensor([0.0, 0, 10]), torch.tensor([1.0, 2, 3])
    advantages, returns = gae(rewards, values, torch.ones(3), torch.tensor([3]), gamma=0.5, lambd=0.5)
    assert advantages.tolist() == pytest.approx([0.0 + 0.25 * (-0.5 + 0.25 * 7), -0.5 + 0.25 * 7, 7])
    assert returns.tolist() == pytest.approx([1.3125, 3.25, 10])


def test_gae_without_lambda_is_the_one_step_error_and_with_it_the_return_less_the_value():
    rewards, values, mask = torch.tensor([1.0, 2, 4]), torch.tensor([3.0, 5, 7]), torch.ones(3)
    one_step, _ = gae(rewards, values, mask, torch.tensor([3]), gamma=1.0, lambd=0.0)
    assert one_step.tolist() == [1 + 5 - 3, 2 + 7 - 5, 4 - 7]
    whole, returns = gae(rewards, values, mask, torch.tensor([3]), gamma=1.0, lambd=1.0)
    assert returns.tolist() == [7, 6, 4] and whole.tolist() == [4, 1, -3]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_tokens(lengths):
    nothing, lengths = torch.zeros(0), torch.tensor(lengths, dtype=torch.long)
    assert len(discounted_returns(nothing, nothing, lengths, 0.9)) == 0
    assert [len(x) for x in gae(nothing, nothing, nothing, lengths, gamma=1.0, lambd=1.0)] == [0, 0]
    assert len(token_rewards(torch.zeros(len(lengths)), nothing, nothing, lengths)) == 0


def test_all_masked():
    """Case 11."""
    zeros, lengths = torch.zeros(5), torch.tensor([2, 3])
    ones = torch.ones(5)
    assert (token_rewards(torch.ones(2), ones, zeros, lengths) == 0).all()
    assert all((x == 0).all() for x in gae(ones, ones, zeros, lengths, gamma=1.0, lambd=1.0))


lengths_of_samples = st.lists(st.integers(0, 3 * CHUNK), min_size=1, max_size=6)
decays = st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0])


@settings(deadline=None, max_examples=40)
@given(lengths_of_samples, decays, st.integers(0, 1000))
def test_sums_equal_the_loop(lengths, decay, seed):
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed))
    got = discounted_sums(values, torch.tensor(lengths), decay)
    torch.testing.assert_close(got, torch.tensor(slow_sums(values.tolist(), lengths, decay)), atol=1e-4, rtol=1e-4)


def test_sums_over_chunks_of_chunks():
    lengths = [2 * CHUNK * CHUNK + 5, 1, CHUNK * CHUNK]
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(0))
    got = discounted_sums(values, torch.tensor(lengths), 0.9999)
    want = torch.tensor(slow_sums(values.tolist(), lengths, 0.9999))
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-4)


@settings(deadline=None, max_examples=40)
@given(lengths_of_samples, decays, decays, st.integers(0, 1000))
def test_gae_equals_the_loop(lengths, gamma, lambd, seed):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, sum(lengths), generator=generator)
    mask = (torch.rand(sum(lengths), generator=generator) < 0.7).float()
    advantages, returns = gae(rewards, values, mask, torch.tensor(lengths), gamma=gamma, lambd=lambd)
    want = torch.tensor(slow_gae(rewards.tolist(), values.tolist(), mask.tolist(), lengths, gamma, lambd))
    torch.testing.assert_close(advantages, want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(returns, (advantages + values) * mask)


@settings(deadline=None, max_examples=40)
@given(lengths_of_samples, st.integers(0, 1000))
def test_masked_tokens_are_skipped_as_if_they_were_not_there(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, sum(lengths), generator=generator)
    mask = (torch.rand(sum(lengths), generator=generator) < 0.5).float()
    lengths = torch.tensor(lengths)
    here = mask > 0
    shorter = torch.stack([part.sum() for part in here.split(lengths.tolist())])
    ours = gae(rewards, values, mask, lengths, gamma=0.9, lambd=0.8)
    without = gae(rewards[here], values[here], torch.ones(int(here.sum())), shorter, gamma=0.9, lambd=0.8)
    for with_them, without_them in zip(ours, without, strict=True):
        torch.testing.assert_close(with_them[here], without_them)
        assert (with_them[~here] == 0).all()
