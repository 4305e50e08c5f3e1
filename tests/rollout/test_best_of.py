from __future__ import annotations

from collections.abc import Callable

import pytest

from slime.config import Config
from slime.rewards import RewardError
from slime.rollout.scores import rewards_for_training
from tests.rollout.samples import finished

BEST_OF = {"custom_reward_post_process_path": "slime.rollout.best_of.best_of_group"}


def test_the_best_of_each_group(make_config: Callable[..., Config]) -> None:
    """By id: the groups are mixed. The second is tied, the third has nothing good."""
    rewards = [(0, 0.5), (1, 2.0), (0, 1.0), (1, 2.0), (2, 0.0), (2, -1.0), (0, 0.0)]
    samples = [finished(i, [3], group=group, reward=reward) for i, (group, reward) in enumerate(rewards)]
    raw, chosen = rewards_for_training(make_config(**BEST_OF), samples)
    assert raw.tolist() == [reward for _, reward in rewards]
    assert chosen.tolist() == [0, 1, 1, 0, 0, 0, 0]


def test_a_reward_that_is_no_number_names_the_sample(make_config: Callable[..., Config]) -> None:
    with pytest.raises(RewardError, match="sample 1 "):
        rewards_for_training(make_config(**BEST_OF), [finished(0, [3]), finished(1, [3], reward=None)])
