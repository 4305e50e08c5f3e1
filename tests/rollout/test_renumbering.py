"""A user's function that gives a sample another number is refused at once: the ledger would be untrue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slime.config import Config
from slime.data.sample import Sample
from slime.rollout.producer import Producer, open_source
from slime.rollout.types import Group, RolloutError, flatten
from tests.rollout.hooks import answers_at_once

HERE = __name__


async def all_are_the_first(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    made = await answers_at_once(args, sample, sampling_params)
    made.index = 0
    return made


async def copies_of_the_next(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    return await answers_at_once(args, Sample(index=sample.index + 1, label=""), sampling_params)


async def parts_with_their_own(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    return [await answers_at_once(args, Sample(index=i, label=""), sampling_params) for i in range(2)]


async def forgets_its_number(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    made = await answers_at_once(args, sample, sampling_params)
    made.index = made.group_index = None
    return made


def seven(args: Any, sample: Sample, **kwargs: Any) -> None:
    sample.index = 7


def another(args: Any, sample: Sample, **kwargs: Any) -> Sample:
    return Sample(index=7)


def rewards_seven(args: Any, sample: Sample, **kwargs: Any) -> float:
    sample.index = 7
    return 1.0


def keeps_seven(args: Any, samples: list[Sample]) -> bool:
    samples[0].index = 7
    return True


def all_seven(args: Any, samples: list[Sample]) -> None:
    samples[0].index = 7


def finished_seven(args: Any, groups: list[Group], data_source: Any) -> None:
    all_seven(args, flatten(groups))


def compares_seven(args: Any, samples: list[Sample]) -> Any:
    samples[0].index = 7
    return [0.0] * len(samples), [0.0] * len(samples)


def converts_seven(args: Any, samples: list[Sample]) -> dict[str, list[Any]]:
    samples[0].index = 7
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [1] * len(samples),
        "loss_masks": [[1]] * len(samples),
        "rewards": [0.0] * len(samples),
    }


def rolled(config: Config) -> None:
    config = config.replace(sglang_router_ip="127.0.0.1", sglang_router_port=9)  # nobody is asked
    with Producer(config, open_source(config)) as producer:
        producer.rollout(0, dp_size=1)


@pytest.mark.parametrize(
    ("option", "function", "number"),
    [
        ("custom_generate_function_path", "all_are_the_first", 0),
        ("custom_generate_function_path", "copies_of_the_next", r"\d"),
        ("custom_generate_function_path", "parts_with_their_own", r"\d"),
        ("custom_rm_path", "rewards_seven", 7),
        ("rollout_sample_hook_path", "seven", 7),
        ("rollout_sample_hook_path", "another", 7),
        ("dynamic_sampling_filter_path", "keeps_seven", 7),
        ("rollout_sample_filter_path", "all_seven", 7),
        ("rollout_all_samples_process_path", "finished_seven", 7),
        ("custom_reward_post_process_path", "compares_seven", 7),
        ("custom_convert_samples_to_train_data_path", "converts_seven", 7),
    ],
)
def test_a_function_that_changes_a_sample_s_number_is_named(
    make_config: Callable[..., Config], option: str, function: str, number: int | str
) -> None:
    custom = {"custom_generate_function_path": "tests.rollout.hooks.answers_at_once", option: f"{HERE}.{function}"}
    flag = "--" + option.replace("_", "-")
    said = rf"^sample \d \(group \d, rollout 0\): {flag} {HERE}\.{function} has made its index {number}: leave it"
    with pytest.raises(RolloutError, match=said):
        rolled(make_config(**custom))


def test_one_that_says_no_number_keeps_it(make_config: Callable[..., Config]) -> None:
    rolled(make_config(custom_generate_function_path=f"{HERE}.forgets_its_number"))
