"""What a plan must hold for any rollout, and small ones worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.schedule import plan
from slime.schedule.packing import by_count, by_tokens

lengths_of_rollouts = st.lists(st.integers(1, 300), max_size=80)
limits = st.one_of(
    st.builds(lambda n: {"micro_batch_size": n}, st.integers(1, 9)),
    st.builds(lambda n: {"max_tokens": n}, st.integers(1, 700)),
)


@given(lengths_of_rollouts, st.integers(1, 6), st.integers(1, 9), limits, st.booleans(), st.integers(1, 4))
def test_properties(lengths, dp_size, num_steps, limit, balance, multiple):
    ranks = plan(lengths, dp_size=dp_size, num_steps=num_steps, balance=balance, micro_batch_multiple=multiple, **limit)
    assert len(ranks) == dp_size
    assert sorted(s for rank in ranks for s in rank.samples) == list(range(len(lengths)))

    step_sizes = []
    first = 0
    for step in zip(*(rank.steps for rank in ranks), strict=True):
        assert len({len(micro_batches) for micro_batches in step}) == 1
        assert len(step[0]) > 0 and len(step[0]) % multiple == 0
        members = sorted(s for micro_batches in step for micro_batch in micro_batches for s in micro_batch)
        assert members == list(range(first, first + len(members)))  # steps take consecutive samples
        first += len(members)
        step_sizes.append(len(members))
        for micro_batch in (mb for micro_batches in step for mb in micro_batches):
            if "micro_batch_size" in limit:
                assert len(micro_batch) <= limit["micro_batch_size"]
            else:
                assert sum(lengths[s] for s in micro_batch) <= limit["max_tokens"] or len(micro_batch) == 1
    assert len(step_sizes) == min(num_steps, len(lengths))
    assert max(step_sizes, default=0) - min(step_sizes, default=0) <= 1


def test_five_samples_two_ranks_micro_batch_two():
    first, second = plan([7, 7, 7, 7, 7], dp_size=2, micro_batch_size=2)
    assert first.steps == [[[0, 2], [4]]]
    assert second.steps == [[[1], [3]]]


def test_fewer_samples_than_ranks():
    ranks = plan([4, 4], dp_size=3, micro_batch_size=2)
    assert [rank.steps for rank in ranks] == [[[[0]]], [[[1]]], [[[]]]]


def test_a_sample_longer_than_the_limit_is_alone():
    (rank,) = plan([5, 200, 5, 90], dp_size=1, max_tokens=100)
    assert rank.steps == [[[1], [0, 2, 3]]]


def test_ranks_agree_on_the_number_of_micro_batches():
    # Rank 0 gets 90 + 90 + 90 tokens: three micro-batches of at most 100. Rank 1 would need one only.
    first, second = plan([90, 10, 90, 10, 90, 10], dp_size=2, max_tokens=100)
    assert first.steps == [[[0], [2], [4]]]
    assert second.steps == [[[1], [3], [5]]]


def test_number_of_micro_batches_rounds_up_for_a_virtual_pipeline():
    (rank,) = plan([10] * 5, dp_size=1, micro_batch_size=2, micro_batch_multiple=4)
    assert rank.steps == [[[0, 1], [2], [3], [4]]]


def test_balance_by_tokens():
    lengths = [100, 10, 100, 10, 10, 10]
    even_odd = plan(lengths, dp_size=2, max_tokens=1000)
    balanced = plan(lengths, dp_size=2, max_tokens=1000, balance=True)
    assert [sum(lengths[s] for s in rank.samples) for rank in even_odd] == [210, 30]
    assert [sum(lengths[s] for s in rank.samples) for rank in balanced] == [120, 120]


def test_balance_by_other_work_than_tokens():
    # By tokens 100 stands against 50 and 50; by the squares it weighs as much as two more such pairs.
    lengths, squares = [100, 50, 50, 50, 50], [4, 1, 1, 1, 1]
    ranks = plan(lengths, dp_size=2, max_tokens=1000, balance=True, work=squares)
    assert sorted(rank.samples for rank in ranks) == [[0], [1, 2, 3, 4]]


def test_balance_keeps_counts_equal_with_a_fixed_micro_batch_size():
    # By tokens alone the long sample would stand against all others, and its rank would wait for six micro-batches.
    lengths = [600, 100, 100, 100, 100, 100, 100, 100]
    ranks = plan(lengths, dp_size=2, micro_batch_size=1, balance=True)
    assert [len(rank.samples) for rank in ranks] == [4, 4]


def test_a_number_of_samples_that_does_not_divide():
    (rank,) = plan([1] * 7, dp_size=1, num_steps=3, micro_batch_size=3)
    assert rank.steps == [[[0, 1, 2]], [[3, 4]], [[5, 6]]]


def test_fewer_samples_than_steps():
    (rank,) = plan([1, 1], dp_size=1, num_steps=3, micro_batch_size=3)
    assert rank.steps == [[[0]], [[1]]]


def test_samples_are_listed_in_the_order_of_training():
    (rank,) = plan([5, 200, 5, 90], dp_size=1, num_steps=2, max_tokens=100)
    assert rank.steps == [[[1], [0]], [[2, 3]]]
    assert rank.samples == [1, 0, 2, 3]


def test_nothing_to_plan():
    assert [rank.steps for rank in plan([], dp_size=2, micro_batch_size=1)] == [[], []]
    assert [rank.steps for rank in plan([], dp_size=2, num_steps=4, max_tokens=9)] == [[], []]


def test_numpy_lengths_give_plain_integers():
    (rank,) = plan(np.array([3, 4], dtype=np.int32), dp_size=1, max_tokens=10, balance=True)
    assert all(type(s) is int for s in rank.samples)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either micro_batch_size or max_tokens"),
        ({"micro_batch_size": 1, "max_tokens": 9}, "either micro_batch_size or max_tokens"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 9, "work": [1]}, "work of 1 samples, lengths of 2"),
    ],
)
def test_contradictory_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan([1, 2], dp_size=1, **arguments)


def test_a_sample_without_tokens_is_named():
    with pytest.raises(ValueError, match="sample 1 has 0 tokens"):
        plan([1, 0], dp_size=1, micro_batch_size=1)


def test_packing_by_count():
    assert by_count(range(5), 3) == [[0, 1], [2, 3], [4]]
    assert by_count([7], 2) == [[7], []]


def test_packing_by_tokens():
    # 40 and 30 open the two that 100 tokens need; 20 joins the 30, then 10 the 40.
    assert by_tokens([0, 1, 2, 3], [10, 40, 30, 20], max_tokens=60) == [[0, 1], [2, 3]]


def test_packing_by_tokens_puts_the_fullest_first():
    assert by_tokens([0, 1, 2], [10, 40, 25], max_tokens=40) == [[1], [0, 2]]


def test_parts_of_a_whole_stay_in_one_step():
    """Four wholes in two steps: the first has three parts, the second is one with the last sample."""
    (rank,) = plan([5] * 7, dp_size=1, num_steps=2, wholes=[0, 0, 0, 1, 2, 3, 1], micro_batch_size=1)
    assert [[sample for micro_batch in step for sample in micro_batch] for step in rank.steps] == [
        [0, 1, 2, 3, 6],
        [4, 5],
    ]
