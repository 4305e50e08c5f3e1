"""Each example of docs/hooks.md does in the real loop what the page says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slime.config import Config
from slime.rollout.producer import Producer, open_source
from slime.rollout.types import flatten

pytestmark = pytest.mark.usefixtures("my_hooks")

SAY = {"custom_generate_function_path": "my_hooks.say_the_label"}
MakeConfig = Callable[..., Config]


@pytest.fixture
def produce(make_config: MakeConfig) -> Callable[..., tuple]:
    """(groups, batch, metrics) of one rollout. No engine is asked: the responses are the labels."""

    def one(source: object = None, **options: object) -> tuple:
        config = make_config(**options).replace(sglang_router_ip="127.0.0.1", sglang_router_port=9)
        groups = []
        with Producer(config, source or open_source(config)) as producer:
            inner = producer._rollout

            def keep(*arguments: object) -> object:
                output = inner(*arguments)
                groups.extend(getattr(output, "samples", output))
                return output

            producer._rollout = keep
            (batch,), metrics = producer.rollout(3, dp_size=1)
        return groups, batch, metrics

    return one


def test_generate_and_sample_hook(produce) -> None:
    groups, batch, metrics = produce(**SAY, rollout_sample_hook_path="my_hooks.remember")
    assert metrics["rollout/raw_reward"] == 1
    assert all(sample.metadata["seen_in"] == 3 and sample.response == sample.label for sample in flatten(groups))
    assert len(batch) == 8


def test_rollout_function(produce, make_config: MakeConfig) -> None:
    _, batch, metrics = produce(rollout_function_path="my_hooks.generate_rollout")
    assert metrics["mine/groups"] == 4
    assert batch.response_lengths_N.tolist() == [1] * 8
    config = make_config(rollout_function_path="my_hooks.generate_rollout")
    config = config.replace(sglang_router_ip="127.0.0.1", sglang_router_port=9)
    with Producer(config, open_source(config)) as producer:
        assert producer.evaluate(0)[0]["eval/mine"] == 1


def test_dynamic_filter(produce, make_config: MakeConfig) -> None:
    """No group is too easy by the length reward; by the label reward all are, and nothing would fill the batch."""
    option = {"dynamic_sampling_filter_path": "my_hooks.not_all_right"}
    _, batch, _ = produce(**SAY, **option, custom_rm_path="my_hooks.short_is_good")
    assert len(batch) == 8
    import my_hooks

    output = my_hooks.not_all_right(None, [my_hooks.Sample(reward=1.0)])
    assert (output.keep, output.reason) == (False, "too_easy")


def test_buffer_filter(produce, make_config: MakeConfig) -> None:
    source = open_source(make_config(buffer_filter_path="my_hooks.newest_first"))
    source.add_samples(source.get_samples(3))
    groups, *_ = produce(source, **SAY)
    assert sorted(group[0].group_index for group in groups) == [0, 1, 2, 3]
    source.add_samples(source.get_samples(2))
    assert [group[0].group_index for group in source.get_samples(1)] == [5]


def test_sample_filter_and_all_samples(produce, capsys: pytest.CaptureFixture[str]) -> None:
    groups, _, _ = produce(
        **SAY,
        rollout_sample_filter_path="my_hooks.without_long_ones",
        rollout_all_samples_process_path="my_hooks.count",
    )
    assert [sample.remove_sample for sample in flatten(groups)] == [s.response_length > 6 for s in flatten(groups)]
    assert "4 groups of 16 prompts" in capsys.readouterr().out


def test_data_source(produce) -> None:
    groups, *_ = produce(**SAY, data_source_path="my_hooks.Countdown")
    assert [sample.response for sample in flatten(groups)] == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_a_data_source_goes_on_where_it_was(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(data_source_path="my_hooks.Countdown", save=str(tmp_path))
    source = open_source(config)
    first, second = source.get_samples(2)
    second[0].response = "half"
    source.add_samples([second])
    source.save(0)
    source.get_samples(2)
    resumed = open_source(config)
    resumed.load(0)
    again, new = resumed.get_samples(2)
    assert [again[0].label, again[0].response, new[0].label] == ["1", "half", "2"] and first[0].label == "0"


def test_rewards(produce) -> None:
    _, batch, _ = produce(
        **SAY, custom_rm_path="my_hooks.short_is_good", custom_reward_post_process_path="my_hooks.as_they_are"
    )
    np.testing.assert_allclose(batch.rewards_N, 1 / (1 + batch.response_lengths_N))


def test_conversion_and_logs(produce, capsys: pytest.CaptureFixture[str]) -> None:
    _, batch, metrics = produce(
        **SAY,
        custom_convert_samples_to_train_data_path="my_hooks.convert",
        custom_rollout_log_function_path="my_hooks.log_rollout",
    )
    assert batch.rewards_N.tolist() == [1] * 8
    assert capsys.readouterr().out.startswith("3 8 ") and metrics["rollout/raw_reward"] == 1


def test_eval_log(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(
        rollout_function_path="my_hooks.generate_rollout", custom_eval_rollout_log_function_path="my_hooks.log_eval"
    ).replace(sglang_router_ip="127.0.0.1", sglang_router_port=9)
    with Producer(config, open_source(config)) as producer:
        producer.evaluate(2)
    assert capsys.readouterr().out == "2 {'mine': 1.0}\n"
