"""Samples to batches, worked out by hand, and what must hold for any samples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.algorithms.normalisation import sample_mean_weights
from slime.config import Config
from slime.data.batch import Batch
from slime.data.sample import Sample, SampleError, Status
from slime.rollout.convert import Scratch, assemble, columns, removed_because
from slime.rollout.producer import Producer
from slime.rollout.replay import NoPrompts
from slime.rollout.types import RolloutError, flatten, number_groups
from tests.rollout import hooks
from tests.rollout.samples import finished

HOOKS = "tests.rollout.hooks"
responses = st.lists(st.lists(st.integers(3, 60), min_size=1, max_size=9), min_size=1, max_size=30)


def convert(config: Config, samples: list[Sample], dp_size: int = 1) -> list[Batch]:
    raw = [10.0 + i for i in range(len(samples))]
    return list(assemble(config, columns(config, samples, raw, range(len(samples))), dp_size=dp_size))


def test_two_ranks_by_hand(make_config: Callable[..., Config]) -> None:
    samples = [
        finished(0, [5, 6]),
        finished(1, [7], loss_mask=[0], status=Status.TRUNCATED),
        finished(2, [8, 9, 10], group=1, loss_mask=[1, 0, 1]),
        finished(3, [11], group=1),
    ]
    config = make_config(num_steps_per_rollout=2, micro_batch_size=1)
    first, second = convert(config, samples, dp_size=2)

    assert first.tokens_T.tolist() == [1, 2, 5, 6, 1, 2, 8, 9, 10]
    assert first.total_lengths_N.tolist() == [4, 5]
    assert first.response_lengths_N.tolist() == [2, 3]
    assert first.loss_mask_R.tolist() == [1, 1, 1, 0, 1]
    assert first.rollout_log_probs_R == pytest.approx([-0.5, -0.6, -0.8, -0.9, -1.0])
    assert (first.rewards_N.tolist(), first.raw_rewards_N.tolist()) == ([0, 2], [10, 12])
    assert (first.group_ids_N.tolist(), first.sample_ids_N.tolist()) == ([0, 1], [0, 2])
    assert second.tokens_T.tolist() == [1, 2, 7, 1, 2, 11]
    assert second.loss_mask_R.tolist() == [0, 1]
    assert second.truncated_N.tolist() == [True, False]
    # The denominators are of both ranks: samples 0 and 1 in the first step, 2 and 3 in the second.
    for batch in (first, second):
        assert [step.micro_batches for step in batch.steps] == [[[0]], [[1]]]
        assert [(step.num_samples, step.num_tokens, step.num_wholes) for step in batch.steps] == [(2, 2, 2), (2, 3, 2)]
        assert batch.train_metadata is None


def test_memory_that_is_used_again_holds_the_same_until_the_next_batch_but_one(
    make_config: Callable[..., Config],
) -> None:
    """Of one rank after the other, and of one rollout after the other, shorter or longer."""
    scratch, names = Scratch(), ("tokens_T", "loss_mask_R", "rollout_log_probs_R")
    places = set()
    for length in (3, 40, 5):
        samples = [finished(i, [3 + i] * length) for i in range(4)]
        expected = convert(make_config(), samples, dp_size=2)
        data = columns(make_config(), samples, [0.0] * 4, [0.0] * 4)
        batches = list(assemble(make_config(), data, dp_size=2, scratch=scratch))
        for batch, wanted in zip(batches, expected, strict=True):
            for name in names:
                np.testing.assert_array_equal(getattr(batch, name), getattr(wanted, name))
            places.add(batch.tokens_T.__array_interface__["data"][0])
    assert len(places) == 4, "two places, and two others that were needed when samples were longer"


def test_batches_are_delivered_in_order_each_before_its_memory_is_used_again(
    make_config: Callable[..., Config],
) -> None:
    """The copy of a batch is made while the next is laid out, however long it takes."""
    samples = [finished(i, [3 + i] * 20) for i in range(8)]
    expected = convert(make_config(), samples, dp_size=4)
    copies = []

    def deliver(batch: Batch) -> int:
        time.sleep(0.05)
        copies.append(batch.tokens_T.copy())
        return len(copies) - 1

    data = columns(make_config(), samples, [0.0] * 8, [0.0] * 8)
    with Producer(make_config(), NoPrompts(), deliver=deliver) as producer:
        assert producer._batches(data, 4) == [0, 1, 2, 3]
    for copy, wanted in zip(copies, expected, strict=True):
        np.testing.assert_array_equal(copy, wanted.tokens_T)


def test_arrays_have_the_types_that_a_batch_promises(make_config: Callable[..., Config]) -> None:
    (batch,) = convert(make_config(), [finished(i, [3, 4], teacher_log_probs=[-1, -2]) for i in range(8)])
    types = {name: getattr(batch, name).dtype for name in batch.__slots__ if name.rpartition("_")[2] in ("N", "R", "T")}
    assert types == {
        "tokens_T": np.int32,
        "total_lengths_N": np.int32,
        "response_lengths_N": np.int32,
        "loss_mask_R": np.float32,
        "rewards_N": np.float32,
        "raw_rewards_N": np.float32,
        "group_ids_N": np.int64,
        "sample_ids_N": np.int64,
        "truncated_N": np.bool_,
        "whole_sizes_N": np.int64,
        "rollout_log_probs_R": np.float32,
        "teacher_log_probs_R": np.float32,
    }


def test_five_samples_on_two_ranks_with_micro_batches_of_two(make_config: Callable[..., Config]) -> None:
    first, second = convert(make_config(micro_batch_size=2), [finished(i, [3]) for i in range(5)], dp_size=2)
    assert first.steps[0].micro_batches == [[0, 1], [2]]
    assert second.steps[0].micro_batches == [[0], [1]]
    assert first.steps[0].num_samples == 5


def test_a_rank_without_samples_has_an_empty_batch(make_config: Callable[..., Config]) -> None:
    *_, last = convert(make_config(), [finished(0, [3])], dp_size=2)
    assert len(last) == 0
    assert last.steps[0].micro_batches == [[]]
    assert (last.steps[0].num_samples, last.steps[0].num_tokens) == (1, 1)


def test_micro_batches_by_tokens_are_of_one_context_parallel_group(make_config: Callable[..., Config]) -> None:
    samples = [finished(i, [3, 4]) for i in range(4)]  # 4 tokens each
    one = make_config("--use-dynamic-batch-size", max_tokens_per_gpu=8)
    two = make_config(
        "--use-dynamic-batch-size", max_tokens_per_gpu=8, context_parallel_size=2, actor_num_gpus_per_node=2
    )
    assert [len(convert(config, samples)[0].steps[0].micro_batches) for config in (one, two)] == [2, 1]


def test_passes_without_gradients_have_rows_of_their_own(make_config: Callable[..., Config]) -> None:
    options = {"max_tokens_per_gpu": 8, "num_steps_per_rollout": 2}
    samples = [finished(i, [3, 4]) for i in range(8)]  # 4 tokens each, 2 on each rank in each step
    config = make_config("--use-dynamic-batch-size", log_probs_max_tokens_per_gpu=16, **options)
    for batch in convert(config, samples, dp_size=2):
        assert [step.micro_batches for step in batch.steps] == [[[0, 1]], [[2, 3]]]
        assert batch.scored == [[0, 1, 2, 3]]
    assert convert(make_config("--use-dynamic-batch-size", **options), samples)[0].scored is None


def test_a_removed_sample_is_masked_but_counted(make_config: Callable[..., Config]) -> None:
    (batch,) = convert(make_config(), [finished(0, [3, 4], remove_sample=True, loss_mask=[1, 1]), finished(1, [5])])
    assert batch.loss_mask_R.tolist() == [0, 0, 1]
    assert (batch.steps[0].num_samples, batch.steps[0].num_tokens) == (2, 1)


def test_samples_that_fanned_out(make_config: Callable[..., Config]) -> None:
    """4 prompts of 2 samples are configured; one of them became three."""
    groups = [
        [finished(0, [3]), [finished(1, [4]), finished(1, [5, 6]), finished(1, [7])]],
        [finished(2, [8], group=1), finished(3, [9], group=1)],
    ]
    config = make_config(num_steps_per_rollout=2)
    (batch,) = convert(config, flatten(groups))
    assert batch.sample_ids_N.tolist() == [0, 1, 1, 1, 2, 3]
    assert batch.group_ids_N.tolist() == [0, 0, 0, 0, 1, 1]
    # Two of the four in each step, and the three parts together.
    assert [(step.num_samples, step.num_wholes) for step in batch.steps] == [(4, 2), (2, 2)]
    assert batch.whole_sizes_N.tolist() == [1, 4, 4, 4, 1, 1]


@given(parts=st.lists(st.integers(1, 4), min_size=1, max_size=12), dp_size=st.integers(1, 3), data=st.data())
def test_the_mean_over_samples_counts_each_once_however_it_is_divided(make_config, parts, dp_size, data) -> None:
    """The weights that training gives to tokens add up, over ranks and the parts of a sample, to 1 a sample."""
    samples = [finished(i, data.draw(responses)[0], group=i // 2) for i, n in enumerate(parts) for _ in range(n)]
    config = make_config(*["--balance-data"] * data.draw(st.booleans()), num_steps_per_rollout=2)
    weight = Counter()
    for batch in convert(config, samples, dp_size):
        assert sum(step.num_wholes for step in batch.steps) == len(parts)
        weights_R = sample_mean_weights(batch.loss_mask_R, batch.response_lengths_N, batch.whole_sizes_N)
        for sample_id, token_weight in zip(
            np.repeat(batch.sample_ids_N, batch.response_lengths_N).tolist(), weights_R.tolist(), strict=True
        ):
            weight[sample_id] += token_weight
    assert weight == pytest.approx(dict.fromkeys(range(len(parts)), 1.0))


def test_groups_get_their_position_where_samples_name_none() -> None:
    groups = [[finished(0, [3], group=None)], [[finished(1, [4], group=None)], finished(2, [5], group=7)]]
    number_groups(groups)
    assert [sample.group_index for sample in flatten(groups)] == [0, 7, 7], "one list is one group, with one mean"


def test_no_group_gets_the_number_of_another() -> None:
    groups = [[finished(8 + i, [3], group=group) for i in range(2)] for group in (1, None, None)]
    number_groups(groups)
    assert [sample.group_index for sample in flatten(groups)] == [1, 1, 0, 0, 2, 2]


def test_no_sample_gets_the_number_of_another(make_config: Callable[..., Config]) -> None:
    """Else two of a group would pass for parts of one, and one for another that is left out."""
    samples = [finished(1, [3]), finished(None, [4]), finished(None, [5]), finished(1, [6])]
    assert columns(make_config(), samples, [0.0] * 4, [0.0] * 4)["sample_indices"] == [1, 0, 2, 1]
    (batch,) = convert(make_config(num_steps_per_rollout=1), samples)
    assert batch.steps[0].num_wholes == 3
    said = list(removed_because(samples, {"sample_indices": [1]}))
    assert said == [None, *["left out by --custom-convert-samples-to-train-data-path"] * 2, None]


def test_train_metadata_goes_with_its_sample(make_config: Callable[..., Config]) -> None:
    samples = [finished(i, [3], train_metadata={"weight": i} if i else None) for i in range(3)]
    first, second = convert(make_config(), samples, dp_size=2)
    assert first.train_metadata == [None, {"weight": 2}]
    assert second.train_metadata == [{"weight": 1}]


def test_without_log_probs(make_config: Callable[..., Config]) -> None:
    (batch,) = convert(make_config(), [finished(i, [3], rollout_log_probs=None) for i in range(2)])
    assert batch.rollout_log_probs_R is None


def test_log_probs_of_some_samples_only(make_config: Callable[..., Config]) -> None:
    samples = [finished(0, [3]), finished(1, [4], rollout_log_probs=None)]
    with pytest.raises(SampleError, match=r"1 of 2 samples carry no rollout_log_probs, the others do: sample 1 "):
        convert(make_config(), samples)


def test_log_probs_of_a_teacher(make_config: Callable[..., Config]) -> None:
    samples = [finished(0, [3, 4], teacher_log_probs=[-1.0, -2.0]), finished(1, [5], teacher_log_probs=[-3.0])]
    (batch,) = convert(make_config(), samples)
    assert batch.teacher_log_probs_R.tolist() == [-1, -2, -3]
    samples[1].teacher_log_probs = None
    with pytest.raises(SampleError, match=r"1 of 2 samples carry no teacher_log_probs, the others do: sample 1 "):
        convert(make_config(), samples)


def test_an_empty_response_needs_no_log_probs(make_config: Callable[..., Config]) -> None:
    (batch,) = convert(make_config(), [finished(0, [3]), finished(1, [], rollout_log_probs=None)])
    assert batch.rollout_log_probs_R == pytest.approx([-0.3])
    assert batch.steps[0].num_tokens == 1


def test_a_mask_that_is_too_short(make_config: Callable[..., Config]) -> None:
    with pytest.raises(SampleError, match=r"sample 1 .*loss_mask has 1 entries, the response has 2 tokens"):
        convert(make_config(), [finished(0, [3]), finished(1, [4, 5], loss_mask=[1])])


@pytest.mark.parametrize("lengths", [{}, {"tokens": [3], "response_length": 1}])
def test_a_sample_without_a_prompt(make_config: Callable[..., Config], lengths: dict) -> None:
    with pytest.raises(SampleError, match=r"sample 1 .*has no token before its response"):
        convert(make_config(), [finished(0, [3]), Sample(index=1, group_index=0, **lengths)])


def test_no_samples(make_config: Callable[..., Config]) -> None:
    with pytest.raises(RolloutError, match="no samples"):
        convert(make_config(), [])


def test_custom_conversion(make_config: Callable[..., Config]) -> None:
    option = {"custom_convert_samples_to_train_data_path": f"{HOOKS}.responses_only"}
    (batch,) = convert(make_config(**option), [finished(0, [3, 4], reward=1.0), finished(1, [5], reward=0.5)])
    assert batch.tokens_T.tolist() == [1, 3, 4, 1, 5]
    assert batch.rewards_N.tolist() == batch.raw_rewards_N.tolist() == [1.0, 0.5]
    assert batch.sample_ids_N.tolist() == [0, 1]
    assert not batch.truncated_N.any()


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("returns_nothing", "returned NoneType, not a dict of columns"),
        ("forgets_masks", "returned no loss_masks"),
        ("leaves_out_the_first", "returned 1 entries for 2 samples: `sample_indices` has to say which"),
        ("leaves_out_all", "returned no entries"),
        ("makes_up_a_sample", "sample_indices has 7, which is no sample of this rollout"),
        ("rewards_in_words", "rewards are no numbers: could not convert string to float: 'good'"),
        ("loses_a_reward", "rewards has 1 entries, tokens has 2"),
        ("cuts_a_mask", "loss_masks of entry 0 has 1 values, the response has 2"),
        ("has_no_log_probs", "rollout_log_probs is a NoneType, not a list of one entry a sample"),
        ("has_no_log_probs_of_one", "rollout_log_probs of entry 1 are no numbers: .*NoneType"),
        ("tokens_in_words", "tokens of entry 0 are no numbers: "),
        ("lengths_in_words", "response_lengths of entry 0 is 'two', not a number"),
        ("one_number_for_all", "sample_indices is a int, not a list of one entry a sample"),
    ],
)
def test_custom_conversion_that_does_not_fit(make_config: Callable[..., Config], hook: str, message: str) -> None:
    config = make_config(custom_convert_samples_to_train_data_path=f"{HOOKS}.{hook}")
    with pytest.raises(RolloutError, match=message):
        convert(config, [finished(0, [3, 4]), finished(1, [5])])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": [np.array([1, 1.5, 3]), [1, 5]]}, r"tokens of entry 0: 1\.5 is no token"),
        ({"tokens": [[1, 1.5, 3], [1, 5]]}, r"tokens of entry 0: 1\.5 is no token"),
        ({"tokens": [[1, 3, 4], np.array([1, 2**33 + 1])]}, "tokens of entry 1: 8589934593 is no token"),
        ({"tokens": [[1, 3, 4], [1, 2**33 + 1]]}, "tokens of entry 1: 8589934593 is no token"),
        ({"tokens": [np.array(5), [1, 5]]}, r"tokens of entry 0 are no numbers: an array of int64, shape \(\)"),
        ({"loss_masks": [np.ones((2, 1)), [1]]}, r"loss_masks of entry 0 .*: an array of float64, shape \(2, 1\)"),
        ({"loss_masks": [np.array(["1", "1"]), [1]]}, r"loss_masks of entry 0 are no numbers: an array of <U1, shape"),
        ({"rewards": [[1], [2]]}, r"rewards are no numbers: an array of float64, shape \(2, 1\)"),
    ],
)
def test_arrays_of_a_custom_conversion_that_are_none_of_numbers(make_config, monkeypatch, wrong, message) -> None:
    monkeypatch.setattr(hooks, "returns_nothing", lambda *given: hooks.responses_only(*given) | wrong)
    config = make_config(custom_convert_samples_to_train_data_path=f"{HOOKS}.returns_nothing")
    with pytest.raises(RolloutError, match=message):
        convert(config, [finished(0, [3, 4]), finished(1, [5])])


def test_arrays_of_a_custom_conversion(make_config, monkeypatch) -> None:
    arrays = {"tokens": [np.array([1.0, 3, 4]), np.array([1, 5], np.uint64)], "loss_masks": [[1, 1], np.array([True])]}
    monkeypatch.setattr(hooks, "returns_nothing", lambda *given: hooks.responses_only(*given) | arrays)
    config = make_config(custom_convert_samples_to_train_data_path=f"{HOOKS}.returns_nothing")
    (batch,) = convert(config, [finished(0, [3, 4]), finished(1, [5])])
    assert (batch.tokens_T.tolist(), batch.loss_mask_R.tolist()) == ([1, 3, 4, 1, 5], [1, 1, 1])


def test_a_custom_conversion_may_leave_samples_out(make_config: Callable[..., Config]) -> None:
    config = make_config(custom_convert_samples_to_train_data_path=f"{HOOKS}.says_what_it_leaves_out")
    samples = [finished(4, [3, 4], group=2), finished(5, [5], group=2)]
    data = columns(config, samples, [0.0, 1.0], [0.0, 1.0])
    assert data["group_indices"] == [2]
    assert list(removed_because(samples, data)) == [
        "left out by --custom-convert-samples-to-train-data-path",
        None,
    ]
    (batch,) = assemble(config, data, dp_size=1)
    assert batch.sample_ids_N.tolist() == [5]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": [1, 2, 3, -5]}, r"token -5 is not in the vocabulary of \d+"),
        ({"tokens": [1, 2, 99999, 3]}, r"token 99999 is not in the vocabulary of \d+"),
        ({"rollout_log_probs": [-1.0, float("nan")]}, "among its rollout_log_probs is nan"),
        ({"rollout_log_probs": [float("-inf"), -1.0]}, "among its rollout_log_probs is -inf"),
        ({"loss_mask": [1, 7]}, "its loss mask has other numbers than 0 and 1"),
        ({"loss_mask": [1, 0.5]}, "its loss mask has other numbers than 0 and 1"),
        ({"loss_mask": [1, -1]}, "its loss mask has other numbers than 0 and 1"),
    ],
)
def test_what_can_not_be_trained_on_names_the_sample(
    make_config: Callable[..., Config], wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(SampleError, match=f"^sample 8: {message}"):
        convert(make_config(), [finished(6, [3]), finished(8, [3, 4], **wrong), finished(9, [5, 6, 7])])


@pytest.mark.parametrize(("option", "counts"), [("--balance-data", [5, 8]), ("--balance-by-flops", [3, 10])])
def test_balance_by_operations_gives_the_long_sample_less_company(make_config, option: str, counts: list[int]) -> None:
    # By tokens, 2000 + 4 x 500 against 8 x 500. The tiny model's attention makes 2000 tokens as much work as 9 x 500.
    samples = [finished(0, [9] * 1999), *(finished(i, [9] * 499) for i in range(1, 13))]
    config = make_config(option, "--use-dynamic-batch-size", max_tokens_per_gpu=8192, num_steps_per_rollout=1)
    assert sorted(map(len, convert(config, samples, 2))) == counts


@settings(deadline=None)
@given(responses=responses, dp_size=st.integers(1, 4), balance=st.booleans(), data=st.data())
def test_no_sample_is_lost_or_changed(make_config, responses, dp_size, balance, data) -> None:
    masks = [data.draw(st.lists(st.integers(0, 1), min_size=len(r), max_size=len(r))) for r in responses]
    samples = [finished(i, r, loss_mask=mask) for i, (r, mask) in enumerate(zip(responses, masks, strict=True))]
    config = make_config(*["--balance-data"] * balance, num_steps_per_rollout=2, micro_batch_size=2)
    batches = convert(config, samples, dp_size)

    seen = {}
    for batch in batches:
        ends_T, ends_R = np.cumsum(batch.total_lengths_N), np.cumsum(batch.response_lengths_N)
        for i, sample_id in enumerate(batch.sample_ids_N.tolist()):
            tokens = batch.tokens_T[ends_T[i] - batch.total_lengths_N[i] : ends_T[i]]
            mask = batch.loss_mask_R[ends_R[i] - batch.response_lengths_N[i] : ends_R[i]]
            seen[sample_id] = (tokens.tolist(), mask.tolist())
        positions = [p for step in batch.steps for micro_batch in step.micro_batches for p in micro_batch]
        assert positions == list(range(len(batch)))
    assert sum(map(len, batches)) == len(samples)
    assert seen == {s.index: (s.tokens, s.loss_mask) for s in samples}
    for steps in zip(*(batch.steps for batch in batches), strict=True):
        assert len({(step.num_samples, step.num_tokens, len(step.micro_batches)) for step in steps}) == 1
    assert sum(step.num_tokens for step in batches[0].steps) == sum(map(sum, masks))
