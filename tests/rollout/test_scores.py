"""Rewards on their way to training; the normalisation itself is tested with slime.algorithms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slime.config import Config
from slime.config.hooks import HookError
from slime.data.sample import SampleError
from slime.rewards import Outcome, RewardError
from slime.rollout.scores import record, rewards_for_training
from slime.rollout.types import RolloutError
from tests.rollout.samples import finished

HOOKS = "tests.rollout.hooks"


def test_compared_within_the_group_by_id(make_config: Callable[..., Config]) -> None:
    """Samples of two groups in turn. 1, 0: mean 1/2, sample deviation 1/sqrt 2; 5, 5: exactly 0."""
    samples = [finished(0, [3], reward=1), finished(1, [3], group=9, reward=5.0)]
    samples += [finished(2, [3], reward=0.0), finished(3, [3], group=9, reward=5.0)]
    raw, rewards = rewards_for_training(make_config(), samples)
    assert raw.tolist() == [1, 5, 0, 5]
    assert rewards == pytest.approx([0.70711, 0, -0.70711, 0], abs=1e-5)
    assert (rewards[1], rewards[3]) == (0, 0)


@pytest.mark.parametrize("policy", ["drop", "zero"])
def test_a_rollout_without_any_reward_is_not_trained_on(make_config: Callable[..., Config], policy: str) -> None:
    samples = [finished(i, [3]) for i in range(2)]
    for sample in samples:
        record(sample, Outcome(0.0, 2, "the service is gone"), drop=policy == "drop")
    with pytest.raises(RolloutError, match=r"none of the 2 samples .* a reward was had.*the service is gone"):
        rewards_for_training(make_config("--rm-failure-policy", policy), samples)


@pytest.mark.parametrize(
    ("estimator", "want"), [("grpo", [1 / 2**0.5, 1 / 2**0.5, 1 / 2**0.5, -1 / 2**0.5]), ("rloo", [1, 1, 1, -1])]
)
def test_a_sample_that_fanned_out_counts_once_in_its_group(
    make_config: Callable[..., Config], estimator: str, want: list[float]
) -> None:
    """Rewards 1 and 0, the first of which has three parts: mean 1/2, not 3/4 (case 21)."""
    samples = [*(finished(0, [3], reward=1.0) for _ in range(3)), finished(1, [3], reward=0.0)]
    _, rewards = rewards_for_training(make_config("--advantage-estimator", estimator), samples)
    assert rewards == pytest.approx(want, abs=1e-5)


def test_a_sample_whose_reward_was_not_had_and_is_dropped_counts_for_nobody(make_config: Callable[..., Config]) -> None:
    """1, 0 and one that would be 0, too, had it not been dropped: as without it; and one with policy zero."""
    samples = [finished(i, [3], reward=reward) for i, reward in enumerate((1.0, 0.0, 0.7))]
    record(samples[2], Outcome(0.0, 0, "the judge is down"), drop=True)
    assert samples[2].remove_sample and samples[2].reward == 0.0
    _, rewards = rewards_for_training(make_config(), samples)
    assert rewards == pytest.approx([0.70711, -0.70711, 0], abs=1e-5)

    samples[2].remove_sample = False
    record(samples[2], Outcome(0.0, 2, "the judge is down"), drop=False)
    _, rewards = rewards_for_training(make_config(), samples)
    assert rewards == pytest.approx([1.1547, -0.57735, -0.57735], abs=1e-4) and not samples[2].remove_sample
    assert samples[2].metadata == {"reward_failure": "the judge is down", "reward_retries": 2}


def test_switches(make_config: Callable[..., Config]) -> None:
    samples = [finished(0, [3], reward=1.0), finished(1, [3], reward=0.0)]
    _, centred = rewards_for_training(make_config("--disable-grpo-std-normalization"), samples)
    _, untouched = rewards_for_training(make_config("--disable-rewards-normalization"), samples)
    assert centred.tolist() == [0.5, -0.5]
    assert untouched.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("estimator", "want"),
    [
        ("grpo", [0.86602, -0.86602, 0.86602, -0.86602]),
        ("gspo", [0.86602, -0.86602, 0.86602, -0.86602]),
        ("cispo", [0.86602, -0.86602, 0.86602, -0.86602]),
        ("rloo", [2 / 3, -2 / 3, 2 / 3, -2 / 3]),
        ("reinforce_plus_plus", [1, 0, 1, 0]),
        ("reinforce_plus_plus_baseline", [0.5, -0.5, 0.5, -0.5]),
    ],
)
def test_each_estimator(make_config: Callable[..., Config], estimator: str, want: list[float]) -> None:
    samples = [finished(i, [3], reward=1.0 - i % 2) for i in range(4)]
    config = make_config("--normalize-advantages", advantage_estimator=estimator)
    raw, rewards = rewards_for_training(config, samples)
    assert raw.tolist() == [1, 0, 1, 0]
    assert rewards == pytest.approx(want, abs=1e-5)


def test_reward_key(make_config: Callable[..., Config]) -> None:
    samples = [finished(0, [3], reward={"right": 1.0, "brief": 3.0}), finished(1, [3], reward={"right": 0.0})]
    raw, _ = rewards_for_training(make_config(reward_key="right"), samples)
    assert raw.tolist() == [1, 0]


@pytest.mark.parametrize("reward", [None, float("nan"), {"brief": 1.0}, "1"])
def test_a_reward_that_is_no_number_names_the_sample(make_config: Callable[..., Config], reward: object) -> None:
    with pytest.raises(RewardError, match="sample 1 "):
        rewards_for_training(make_config(reward_key="right"), [finished(0, [3]), finished(1, [3], reward=reward)])


def test_custom_post_process(make_config: Callable[..., Config]) -> None:
    config = make_config(custom_reward_post_process_path=f"{HOOKS}.double")
    raw, rewards = rewards_for_training(config, [finished(0, [3], reward=1.0), finished(1, [3], reward=3.0)])
    assert (raw.tolist(), rewards.tolist()) == ([1, 3], [2, 6])


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        ("one_reward", RolloutError, r"rewards have the shape \(1,\), not one for each of 2 samples"),
        ("forgets_to_return", RolloutError, "forgets_to_return returned a NoneType, not raw rewards and rewards"),
        ("not_a_number", SampleError, "sample 1 .*: --custom-reward-post-process-path made rewards of it"),
        ("missing", HookError, "--custom-reward-post-process-path tests.rollout.hooks.missing: .* has no 'missing'"),
    ],
)
def test_custom_post_process_that_goes_wrong(
    make_config: Callable[..., Config], hook: str, error: type[Exception], message: str
) -> None:
    config = make_config(custom_reward_post_process_path=f"{HOOKS}.{hook}")
    with pytest.raises(error, match=message):
        rewards_for_training(config, [finished(0, [3]), finished(1, [3])])
