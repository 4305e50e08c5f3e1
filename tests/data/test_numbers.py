"""Numbers do what a list of numbers does, where users' functions may do it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from slime.data.numbers import LOG_PROB, Numbers
from slime.data.sample import Sample


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda numbers: pickle.loads(pickle.dumps(numbers))])
def test_a_copy_is_such_numbers_again(copied: Callable[[Numbers], Numbers]) -> None:
    numbers, more = Numbers(LOG_PROB, [-0.1, -0.2]), [0.5]
    other = copied(numbers)
    assert type(other) is Numbers and other == [-0.1, -0.2] and other + more == [-0.1, -0.2, 0.5]
    other.append(0.0)
    assert numbers == [-0.1, -0.2], "they share nothing"


def test_a_deep_copy_of_a_packed_sample_reads_as_the_sample() -> None:
    sample = Sample(tokens=[1, 2, 3], response_length=1)
    sample.pack()
    other = copy.deepcopy(sample)
    assert other == sample and other.tokens == [1, 2, 3] and type(other.tokens) is Numbers


def test_a_multiple_is_a_list() -> None:
    for multiple in (Numbers("i", [1, 2]) * 2, 2 * Numbers("i", [1, 2])):
        assert type(multiple) is list and multiple == [1, 2, 1, 2]
