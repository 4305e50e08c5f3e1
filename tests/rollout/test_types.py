"""What a user's rollout function returns is looked at before anybody trains on it."""

from __future__ import annotations

from typing import Any

import pytest

from slime.data.sample import Sample
from slime.rollout.types import RolloutError, check_eval, check_groups
from tests.rollout.samples import finished

FIRST, SECOND, OTHER = (finished(i, [3, 4], group=g, reward=0.0) for i, g in ((0, 0), (1, 0), (2, 1)))
AGAIN, ELSEWHERE = (finished(0, [3, 4], group=g, reward=0.0) for g in (0, 2))  # copies


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
        ([[FIRST, AGAIN]], r"sample 0 .* is in the batch twice"),
        ([[FIRST], [ELSEWHERE]], r"sample 0 \(group 2, .*\) is in the batch twice"),
        ([[FIRST, [OTHER, AGAIN]]], r"sample 0 .* is in the batch twice"),
        ([FIRST, SECOND], "group 0 is a Sample, not a list of samples"),
        ([[FIRST], "text"], "group 1 is a str, not a list of samples"),
        ([[FIRST, [OTHER, "text"]]], "group 0 holds a str, not a Sample"),
        ([[FIRST], ["text"]], "group 1 holds a str, not a Sample"),
        ([[None]], r"mine\.generate: group 0 holds a NoneType, not a Sample"),
        ([[3]], r"mine\.generate: group 0 holds a int, not a Sample"),
    ],
)
def test_what_is_refused(groups: list[Any], message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        check_groups(groups, "mine.generate")


def test_an_evaluation_as_it_should_be() -> None:
    check_eval({"a": {"rewards": [1, 0.5], "truncated": [False, True]}}, "mine.evaluate")
    check_eval({"a": {"rewards": [1.0], "truncated": [False], "samples": [FIRST]}, "b": SOUND}, "mine.evaluate")
    check_eval({"a": SOUND | {"samples": []}, "b": SOUND | {"samples": None}}, "mine.evaluate")


SOUND = {"rewards": [1.0], "truncated": [False]}


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([1.0], "is a list, not a dict of rewards and truncated"),
        ({"rewards": [1.0]}, "has no truncated"),
        ({"truncated": [False]}, "has no rewards"),
        (SOUND | {"rewards": None}, "has a NoneType for its rewards, not a list"),
        (SOUND | {"rewards": [], "truncated": []}, "has no samples"),
        (SOUND | {"truncated": [False, False]}, "has 1 rewards and 2 truncated"),
        (SOUND | {"samples": [FIRST, SECOND]}, "has 1 rewards and 2 samples"),
        (SOUND | {"rewards": ["good"]}, "has 'good' among its rewards, which is no number"),
        (SOUND | {"rewards": ["1.0"]}, "has '1.0' among its rewards, which is no number"),
        (SOUND | {"samples": 3}, "has a int for its samples, not a list"),
        (SOUND | {"samples": ["text"]}, "has a str among its samples"),
    ],
)
def test_what_of_an_evaluation_is_refused(results: Any, message: str) -> None:
    with pytest.raises(RolloutError, match=rf"--eval-function-path mine\.evaluate: eval set b {message}"):
        check_eval({"a": SOUND, "b": results}, "mine.evaluate")
