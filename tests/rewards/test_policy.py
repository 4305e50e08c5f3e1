"""Rewards that are not had: tried again, and by policy (case 28); mistakes end a run whatever the policy (case 8)."""

from __future__ import annotations

import asyncio

import pytest

from slime.rewards import Outcome, RewardError, RewardFailure, settle
from tests.rewards import hooks
from tests.rewards.test_hub import args_of, sample_of

PAIR = [sample_of(0), sample_of(1)]
WHY = "tests.rewards.hooks.fails_for_the_odd raised ConnectionError: no service"


@pytest.fixture(autouse=True)
def nothing_asked_yet() -> None:
    hooks.ASKED.clear()


def settled(hook: str, **options: object) -> list[Outcome]:
    return asyncio.run(settle(args_of(hook, **options), PAIR))


def test_stop_names_the_sample() -> None:
    with pytest.raises(RewardFailure) as failure:
        settled("fails_for_the_odd")
    assert str(failure.value) == f"sample 1 (group 1, rollout 2): {WHY}"


@pytest.mark.parametrize("policy", ["zero", "drop"])
def test_else_the_others_go_on_and_it_is_said_why(policy: str) -> None:
    outcomes = settled("fails_for_the_odd", rm_failure_policy=policy, rm_retries=1)
    assert outcomes == [Outcome(1.0, 0), Outcome(0.0, 1, WHY)]
    assert sorted(hooks.ASKED) == [0, 1, 1]


def test_a_reward_of_nothing_has_the_key_that_counts() -> None:
    assert settled("raises", rm_failure_policy="zero", reward_key="right")[0].reward == {"right": 0.0}


def test_one_that_hangs_is_bounded() -> None:
    (first, second) = settled("hang_asynchronously", rm_failure_policy="drop", rm_timeout=0.1)
    assert "did not return within 0.1 s" in first.failure and second.reward == 0.0


def test_what_a_second_try_brings_is_a_reward() -> None:
    assert settled("second_time_lucky", rm_retries=1) == [Outcome(1.0, 1)] * 2


def test_a_group_fails_as_one() -> None:
    outcomes = settled("group_fails", group_rm=True, rm_failure_policy="zero")
    assert [outcome.reward for outcome in outcomes] == [0.0, 0.0]
    assert {outcome.failure for outcome in outcomes} == {
        "tests.rewards.hooks.group_fails raised ConnectionError: no service"
    }


@pytest.mark.parametrize("reward", [None, float("nan"), {"wrong": 1}])
def test_a_mistake_is_no_failure(reward: object) -> None:
    args = args_of("returns", rm_failure_policy="drop", rm_retries=3, reward_key="right")
    with pytest.raises(RewardError, match=r"sample 3 .*the reward") as error:
        asyncio.run(settle(args, [sample_of(metadata={"returns": reward})]))
    assert not isinstance(error.value, RewardFailure)
