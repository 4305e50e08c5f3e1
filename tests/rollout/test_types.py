"""What a user's rollout function returns is looked at before anybody trains on it."""

from __future__ import annotations

from typing import Any

import pytest

from slime.data.sample import Sample
from slime.rollout.types import RolloutError, check_groups
from tests.rollout.samples import finished

FIRST, SECOND, OTHER = (finished(i, [3, 4], group=g, reward=0.0) for i, g in ((0, 0), (1, 0), (2, 1)))
AGAIN = finished(0, [3, 4], group=0, reward=0.0)


@pytest.mark.parametrize(
    "groups",
    [
        [[FIRST, SECOND], [OTHER]],
        [[[FIRST, AGAIN], SECOND]],  # fanned out
        [[Sample(prompt="a")], [Sample(prompt="a")]],  # without numbers
    ],
)
def test_groups_as_they_should_be(groups: list[Any]) -> None:
    check_groups(groups, "mine.generate")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[FIRST], [FIRST]], r"mine\.generate: sample 0 \(group 0, .*\) is in the batch twice"),
        ([[OTHER, OTHER]], r"sample 2 .* is in the batch twice"),
        ([[FIRST], [AGAIN]], r"sample 0 .* is in the batch twice"),
        ([FIRST, SECOND], "group 0 is a Sample, not a list of samples"),
        ([[FIRST], "text"], "group 1 is a str, not a list of samples"),
        ([[FIRST, [OTHER, "text"]]], "group 0 holds a str, not a Sample"),
    ],
)
def test_what_is_refused(groups: list[Any], message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        check_groups(groups, "mine.generate")
