from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.algorithms.advantages import group_normalised, leave_one_out

REWARDS = st.floats(-100, 100, width=32)


def test_two_of_four_right():
    np.testing.assert_allclose(group_normalised([1, 0, 1, 0], [7, 7, 7, 7]), [0.866024, -0.866024] * 2, rtol=1e-5)


def test_two_of_four_right_with_the_deviation_of_the_population():
    np.testing.assert_allclose(group_normalised([1, 0, 1, 0], [7] * 4, ddof=0), [1, -1, 1, -1], rtol=1e-5)


def test_mean_alone():
    np.testing.assert_allclose(group_normalised([3, 0, 0], [0, 0, 0], divide_by_std=False), [2, -1, -1])


def test_groups_of_four_three_and_four_one_of_them_all_equal():
    ids = [10] * 4 + [11] * 3 + [12] * 4
    advantages = group_normalised([1, 0, 0, 1, 5.0, 5.0, 5.0, 2, 2, 2, 6], ids)
    np.testing.assert_allclose(advantages[:4], [0.866024, -0.866024, -0.866024, 0.866024], rtol=1e-5)
    assert (advantages[4:7] == 0).all()
    np.testing.assert_allclose(advantages[7:], [-0.5, -0.5, -0.5, 1.5], rtol=1e-5)


def test_groups_are_told_apart_by_id_not_by_place():
    mixed = group_normalised([1, 10, 0, 30, 1], [0, 1, 0, 1, 0], divide_by_std=False)
    np.testing.assert_allclose(mixed, [1 / 3, -10, -2 / 3, 10, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 5.0, -1e6])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_rewards_give_exactly_zero(reward, size):
    assert (group_normalised([reward] * size, [3] * size) == 0).all()


def test_no_samples():
    assert group_normalised([], []).shape == (0,)


@given(st.lists(st.tuples(REWARDS, st.integers(0, 4)), min_size=1, max_size=30), st.booleans())
def test_each_group_sums_to_zero_and_keeps_the_order_of_its_rewards(samples, divide_by_std):
    rewards, ids = map(np.array, zip(*samples, strict=True))
    advantages = group_normalised(rewards, ids, divide_by_std=divide_by_std)
    assert np.isfinite(advantages).all()
    for group in set(ids):
        mine = ids == group
        assert abs(advantages[mine].sum()) < 1e-3 * max(1.0, np.abs(advantages[mine]).max())
        order = np.argsort(rewards[mine])
        assert (np.diff(advantages[mine][order]) >= 0).all()


def test_parts_of_one_sample_are_compared_by_their_own_rewards():
    """The first has parts of 3 and 1, so counts as 2 beside 0: mean 1, and (4 + 0)/2 + 1 as the sum of two squares."""
    rewards, groups, wholes = [3, 1, 0], [5, 5, 5], [0, 0, 1]
    np.testing.assert_allclose(group_normalised(rewards, groups, wholes), np.array([2, 0, -1]) / 3**0.5, rtol=1e-5)
    np.testing.assert_allclose(leave_one_out(rewards, groups, wholes), [3, 1, -2], rtol=1e-6)


def test_parts_of_samples_that_are_equal_as_wholes():
    """Two samples of parts that got 1 and 0: squares of 1/4 each, mean over two wholes 1/4, of the sample 1/2."""
    groups, wholes = [0] * 4, [0, 0, 1, 1]
    np.testing.assert_allclose(
        group_normalised([1, 0, 0, 1], groups, wholes), np.array([1, -1, -1, 1]) / 2**0.5, rtol=1e-5
    )
    np.testing.assert_allclose(leave_one_out([1, 0, 0, 1], groups, wholes), [0.5, -0.5, -0.5, 0.5])


def test_a_single_sample_that_fanned_out():
    """Its parts have only each other: mean 2/3, mean square 2/9. There is no other sample to leave it out for."""
    np.testing.assert_allclose(group_normalised([1, 0, 1], [0] * 3, [0] * 3), np.array([1, -2, 1]) / 2**0.5, rtol=1e-5)
    assert (leave_one_out([1, 0, 1], [0] * 3, [0] * 3) == 0).all()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=20))
def test_parts_never_get_more_than_their_number_allows(parts):
    """By the definition of a variance: of W wholes of at most p parts, A^2 <= W p."""
    rewards, wholes = map(np.array, zip(*parts, strict=True))
    advantages = group_normalised(rewards, np.zeros(len(parts), int), wholes)
    most = len(set(wholes)) * max(np.bincount(wholes))
    assert (advantages**2 <= most + 1e-3).all()


def test_leave_one_out_by_hand():
    np.testing.assert_allclose(leave_one_out([1, 0, 1, 0], [7] * 4), [2 / 3, -2 / 3] * 2, rtol=1e-6)


def test_leave_one_out_of_groups_of_three_and_five():
    """Case 7: told apart by id."""
    ids, rewards = [1, 2, 1, 2, 2, 1, 2, 2], [3, 0, 0, 0, 0, 0, 0, 5.0]
    want = [3, -1.25, -1.5, -1.25, -1.25, -1.5, -1.25, 5]
    np.testing.assert_allclose(leave_one_out(rewards, ids), want, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_leave_one_out_of_equal_rewards_is_exactly_zero(size):
    assert (leave_one_out([0.1] * size, [3] * size) == 0).all()


@given(st.lists(REWARDS, min_size=2, max_size=12))
def test_leave_one_out_is_the_difference_to_the_mean_times_n_over_n_minus_1(rewards):
    n = len(rewards)
    centred = group_normalised(rewards, [0] * n, divide_by_std=False)
    np.testing.assert_allclose(leave_one_out(rewards, [0] * n), centred * n / (n - 1), rtol=1e-4, atol=1e-4)
