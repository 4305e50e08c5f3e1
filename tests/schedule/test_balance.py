"""Karmarkar–Karp by hand, and what must hold for any weights."""

from hypothesis import given
from hypothesis import strategies as st

from slime.schedule.balance import largest_differencing, round_robin

weights = st.lists(st.integers(1, 10_000), max_size=60)
parts = st.integers(1, 9)


def loads(weights: list[int], dealt: list[list[int]]) -> list[int]:
    return [sum(weights[item] for item in part) for part in dealt]


def test_two_parts_by_hand():
    # Differences: 8-7 = 1, 6-5 = 1, 4-1 = 3, 3-1 = 2. So 14 against 16; the best would be 15 and 15.
    weights = [8, 7, 6, 5, 4]
    assert sorted(loads(weights, largest_differencing(weights, 2))) == [14, 16]


def test_three_parts_by_hand():
    # One heavy item against many light ones: the heavy one stays alone.
    weights = [3, 100, 3, 3, 3, 3, 3]
    dealt = largest_differencing(weights, 3)
    assert [1] in dealt
    assert sorted(loads(weights, dealt)) == [9, 9, 100]


def test_equal_counts_by_hand():
    # Counts 2 and 2 force a light item beside the heavy one; the heaviest goes with the lightest.
    weights = [10, 4, 3, 1]
    assert sorted(largest_differencing(weights, 2, equal_counts=True)) == [[0, 3], [1, 2]]


def test_round_robin():
    assert round_robin(5, 2) == [[0, 2, 4], [1, 3]]
    assert round_robin(1, 3) == [[0], [], []]


@given(weights, parts, st.booleans())
def test_every_item_once_and_in_order(weights, parts, equal_counts):
    dealt = largest_differencing(weights, parts, equal_counts=equal_counts)
    assert len(dealt) == parts
    assert sorted(item for part in dealt for item in part) == list(range(len(weights)))
    assert all(part == sorted(part) for part in dealt)


@given(weights, parts)
def test_equal_counts_differ_by_one_at_most(weights, parts):
    counts = [len(part) for part in largest_differencing(weights, parts, equal_counts=True)]
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60), parts, st.booleans())
def test_spread_is_at_most_the_heaviest_item(weights, parts, equal_counts):
    # Joining two solutions never gives a larger spread than the larger of theirs.
    load = loads(weights, largest_differencing(weights, parts, equal_counts=equal_counts))
    assert max(load) - min(load) <= max(weights)
