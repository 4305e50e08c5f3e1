"""What the engine is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slime.config import Config
from slime.data.eval_sets import eval_sets
from slime.rollout.sampling import Sampling, seeds
from tests.rollout.samples import finished


def test_of_the_rollout(make_config: Callable[..., Config]) -> None:
    config = make_config(
        *("--rollout-stop-token-ids", "7", "9", "--rollout-stop", "###"),
        rollout_temperature=0.7,
        rollout_top_p=0.9,
        rollout_top_k=20,
    )
    assert Sampling.for_rollout(config).params == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "max_new_tokens": 8,
        "stop_token_ids": [7, 9],
        "stop": ["###"],
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


def test_of_an_eval_set(make_config: Callable[..., Config], tiny) -> None:
    config = make_config(
        *("--eval-prompt-data", "sort", str(tiny.heldout), "--eval-interval", "1"),
        eval_temperature=0,
        eval_max_response_len=20,
        eval_min_new_tokens=3,
    )
    params = Sampling.for_eval(config, *eval_sets(config)).params
    assert params["temperature"] == 0
    assert (params["max_new_tokens"], params["min_new_tokens"]) == (20, 3)
    assert params["top_p"] == 1.0  # as of the rollout


@pytest.mark.parametrize(("prompt", "left"), [(10, 8), (14, 6), (20, 0), (25, 0)])
def test_what_the_context_leaves_for_a_response(make_config: Callable[..., Config], prompt: int, left: int) -> None:
    assert Sampling.for_rollout(make_config(rollout_max_context_len=20)).max_new_tokens(prompt) == left


def test_seeds_are_each_samples_own_and_the_same_again(make_config) -> None:
    config = make_config("--sglang-enable-deterministic-inference")
    samples = [finished(i, [3] * length) for i in range(8) for length in (0, 5)]
    first = seeds(config, samples)
    assert seeds(config, samples) == first and len(set(first)) == 16
    assert all(0 <= seed < 2**31 for seed in first)
    assert not set(first) & set(seeds(config.replace(rollout_seed=7), samples))
    assert seeds(make_config(), samples) is None
