"""Every figure by hand, and every name in the table of names."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from slime.data.sample import Status
from slime.inference.client import Generation
from slime.observe.names import find
from slime.rollout.metrics import (
    eval_metrics,
    further_metrics,
    pass_at,
    repeats_itself,
    request_metrics,
    rollout_metrics,
)
from slime.rollout.responses import begin, grow
from tests.rollout.samples import finished

SOLVED = SimpleNamespace(solved_above=0.5, pass_at_k=())


def test_rollout() -> None:
    samples = [
        finished(
            0, [3], response="<think>a</think>b", prefix_cache_info={"cached_tokens": 1, "total_prompt_tokens": 2}
        ),
        finished(1, [3] * 4, status=Status.TRUNCATED, prefix_cache_info={"cached_tokens": 2, "total_prompt_tokens": 2}),
        finished(2, [3] * 5, group=1, loss_mask=[1, 0, 0, 0, 1], non_generation_time=2.0),
        finished(3, [3] * 10, group=1, remove_sample=True, response="<think>never closed"),
        finished(4, [3] * 10, group=2),
        finished(5, [3] * 10, group=2),
    ]
    metrics = rollout_metrics(samples, [1, 1, 0.5, 0, 0, 0], seconds=2.0, num_gpus=5)
    assert metrics == {
        "rollout/response_len/mean": pytest.approx(40 / 6),
        "rollout/response_len/median": 7.5,
        "rollout/response_len/max": 10,
        "rollout/response_len/min": 1,
        "rollout/repetition_frac": 0,
        "rollout/thinking_ratio": pytest.approx(1 / 6),
        "rollout/raw_reward": pytest.approx(2.5 / 6),
        "rollout/truncated_ratio": pytest.approx(1 / 6),
        "rollout/reward_failures": 0,
        "rollout/reward_retries": 0,
        "rollout/zero_std/count_0.0": 1,
        "rollout/zero_std/count_1.0": 1,
        "rollout/prefix_cache_hit_rate": 0.75,
        "rollout/avg_cached_tokens_per_sample": 1.5,
        "perf/rollout_time": 2,
        "perf/longest_sample_tokens_per_sec": 5,
        "perf/tokens_per_gpu_per_sec": 4,
        "perf/effective_tokens_per_gpu_per_sec": pytest.approx((1 + 4 + 2 + 0 + 20) / 10),
        "perf/non_generation_time/mean": pytest.approx(1 / 3),
        "perf/non_generation_time/median": 0,
        "perf/non_generation_time/max": 2,
        "perf/non_generation_time/min": 0,
    }


def test_the_pace_of_a_response_that_was_begun_in_an_earlier_rollout_is_its_own() -> None:
    """8000 tokens by five requests of 10 s each, the last of them in this rollout."""
    longest, short = finished(0, [], tokens=[1, 2]), finished(1, [3])
    for _ in range(5):
        grow(longest, Generation([3] * 1600, [0.0] * 1600, "length", [], 1, 0, 10.0, None, {}))
    metrics = rollout_metrics([longest, short], [1, 0], seconds=10.0, num_gpus=1)
    assert metrics["perf/longest_sample_tokens_per_sec"] == 160
    assert metrics["perf/rollout_time"] == 10
    begin(longest, [1, 2])
    grow(longest, Generation([3] * 1600, [0.0] * 1600, "length", [], 1, 0, 8.0, None, {}))
    metrics = rollout_metrics([longest, short], [1, 0], seconds=10.0, num_gpus=1)
    assert metrics["perf/longest_sample_tokens_per_sec"] == 160, "1600 tokens in a rollout of 10 s"


def test_of_several_longest_responses_the_slowest_sets_the_pace() -> None:
    """As those are that have all been cut off at the limit."""
    quick, slow = finished(0, [3] * 1000), finished(1, [3] * 1000)
    quick.generation_time, slow.generation_time = 10.0, 100.0
    for samples in ([quick, slow], [slow, quick]):
        metrics = rollout_metrics(samples, [1, 0], seconds=5.0, num_gpus=1)
        assert metrics["perf/longest_sample_tokens_per_sec"] == 10


def test_groups_of_one_sample_are_not_counted_as_equal() -> None:
    metrics = rollout_metrics([finished(0, [3]), finished(1, [3], group=1)], [0, 0], seconds=1, num_gpus=1)
    assert not [name for name in metrics if "zero_std" in name]


def test_eval() -> None:
    """Of two prompts and two samples each, one prompt is solved once, the other never."""
    samples = [finished(i, [3] * i, group=i // 2, response="</think>" if i else "") for i in range(4)]
    metrics = eval_metrics(
        SOLVED, {"col": {"rewards": [1.0, 0.0, 0.0, 0.0], "truncated": [False] * 3 + [True], "samples": samples}}
    )
    assert metrics == {
        "eval/col": 0.25,
        "eval/col-truncated_ratio": 0.25,
        "eval/col/response_len/mean": 1.5,
        "eval/col/response_len/median": 1.5,
        "eval/col/response_len/max": 3,
        "eval/col/response_len/min": 0,
        "eval/col/repetition_frac": 0,
        "eval/col/thinking_ratio": 0.75,
        "eval/col-reward_failures": 0,
        "eval/col-reward_retries": 0,
        "eval/col-pass@1": 0.25,
        "eval/col-pass@2": 0.5,
    }


def test_eval_without_samples() -> None:
    data = {"mine": {"rewards": [0.5, 0.7], "truncated": [False, False]}}
    assert eval_metrics(SOLVED, data) == {"eval/mine": pytest.approx(0.6), "eval/mine-truncated_ratio": 0}


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        ([1, -1, -1, -1], {}, {"1": 0.25, "2": 0.5, "4": 1}),  # as the dapo grader gives them
        ([0.4, 0.6, 0.5, 0.1], {}, {"1": 0.25, "2": 0.5, "4": 1}),
        ([0.4, 0.6, 0.5, 0.1], {"solved_above": 0.3}, {"1": 0.75, "2": 1, "4": 1}),
        ([1, 0, 0, 0], {"pass_at_k": (3,)}, {"3": 0.75}),
        ([1, 0, 0, 0], {"pass_at_k": (4, 5)}, {"4": 1}),  # of 4 samples nobody knows pass@5
        ([0.5, 0.5, 0.5, 0.5], {}, {"1": 0, "2": 0, "4": 0}),
    ],
)
def test_what_is_solved_and_the_k_of_pass_at_k(rewards: list[float], options: dict, expected: dict) -> None:
    data = {"s": {"rewards": rewards, "truncated": [False] * 4, "samples": [finished(i, [3]) for i in range(4)]}}
    metrics = eval_metrics(SimpleNamespace(**vars(SOLVED) | options), data)
    assert {name.partition("@")[2]: value for name, value in metrics.items() if "pass@" in name} == expected


@pytest.mark.parametrize(
    ("k", "n", "correct", "expected"),
    # 2 of 4 correct: a pair misses both in 1 of 6 ways.
    [(1, 4, 2, 1 / 2), (2, 4, 2, 5 / 6), (4, 4, 1, 1), (2, 4, 0, 0), (1, 1, 1, 1)],
)
def test_pass_at(k: int, n: int, correct: int, expected: float) -> None:
    assert pass_at(k, n, correct) == pytest.approx(expected)


def test_requests() -> None:
    measured = [Generation([3], [0.0], "stop", [], 1, 0, latency, None, {}) for latency in (1.0, 2.0, 6.0)]
    assert request_metrics(measured) == {
        "perf/request/e2e_latency/mean": 3,
        "perf/request/e2e_latency/median": 2,
        "perf/request/e2e_latency/max": 6,
        "perf/request/e2e_latency/min": 1,
    }


def test_queue_times_where_the_engine_measures_them() -> None:
    assert (
        request_metrics([Generation([3], [0.0], "stop", [], 1, 0, 1.0, 0.25, {})])["perf/request/queue_time/max"]
        == 0.25
    )


def test_repetition() -> None:
    rng = random.Random(0)
    words = [f"word{i}" for i in range(500)]
    prose = " ".join(rng.choice(words) for _ in range(2000))
    loop = "so the answer is 4, wait, let me check again. " * 300
    assert not repeats_itself(prose)
    assert repeats_itself(loop)
    assert repeats_itself(prose + loop)
    assert not repeats_itself("ha" * 100)  # too short to tell


def test_every_name_is_in_the_table() -> None:
    sample = finished(0, [3], non_generation_time=1.0, prefix_cache_info={"cached_tokens": 1, "total_prompt_tokens": 2})
    names = {
        *rollout_metrics([sample, sample], [0, 0], seconds=1, num_gpus=1),
        *eval_metrics(SOLVED, {"s": {"rewards": [0.0, 0.0], "truncated": [False, False], "samples": [sample, sample]}}),
        *request_metrics([Generation([3], [0.0], "stop", [], 1, 0, 1.0, 0.25, {})]),
    }
    assert [name for name in names if find(name) is None] == []


def test_further_metrics() -> None:
    samples = [
        finished(
            0,
            [3] * 6,
            loss_mask=[1, 1, 0, 0, 0, 1],
            metadata={"round_number": 3, "template_drift": True},
            reward={"why": "right"},
        ),
        finished(1, [3] * 2, metadata={"round_number": 1, "template_drift": False}, reward={"why": "format"}),
        finished(2, [3] * 2, group=1, reward={"why": "format"}),
        finished(3, [3] * 2, group=1, reward={"why": "format"}),
    ]
    off = {"log_multi_turn": False, "log_passrate": False, "log_correct_samples": False, "log_reward_category": None}
    off |= vars(SOLVED)
    rewards = [1, 0, 0, 0]
    assert further_metrics(SimpleNamespace(**off), samples, rewards) == {}
    turns = further_metrics(SimpleNamespace(**off | {"log_multi_turn": True}), samples, rewards)
    assert (turns["multi_turn/raw_response_length/max"], turns["multi_turn/wo_obs_response_length/max"]) == (6, 3)
    assert (turns["multi_turn_metric/round_number_mean"], turns["multi_turn_metric/round_number_max"]) == (2, 3)
    assert turns["multi_turn_metric/template_drift"] == 0.5
    rates = further_metrics(SimpleNamespace(**off | {"log_passrate": True}), samples, rewards)
    assert rates == {"passrate/pass@1": 0.25, "passrate/pass@2": 0.5}
    categories = further_metrics(SimpleNamespace(**off | {"log_reward_category": "why"}), samples, rewards)
    assert categories == {"rollout/error_cat/format": 0.75, "rollout/error_cat/right": 0.25}
    correct = further_metrics(SimpleNamespace(**off | {"log_correct_samples": True}), samples, rewards)
    assert (correct["rollout/correct_ratio"], correct["rollout/correct_truncated_ratio"]) == (0.25, 0)
    assert (correct["rollout/correct_response_len/mean"], correct["rollout/incorrect_response_len/max"]) == (6, 2)
    assert all(map(find, [*turns, *rates, *categories, *correct]))


def test_a_sample_that_fanned_out_counts_once() -> None:
    """Of two samples of a prompt the first became three, and passed; as many parts would have made it 3 of 4."""
    samples = [*(finished(0, [3] * 2) for _ in range(3)), finished(1, [3] * 8)]
    rewards = [1, 1, 1, 0]
    on = SimpleNamespace(
        log_multi_turn=False, log_passrate=True, log_correct_samples=True, log_reward_category=None, **vars(SOLVED)
    )
    metrics = further_metrics(on, samples, rewards)
    assert metrics["passrate/pass@1"] == metrics["rollout/correct_ratio"] == 0.5
    assert metrics["rollout/correct_response_len/mean"] == 6, "its parts together"
    metrics = rollout_metrics(samples, rewards, seconds=1, num_gpus=1)
    assert metrics["rollout/raw_reward"] == 0.5
    results = {"rewards": rewards, "truncated": [False] * 4, "samples": samples}
    metrics = eval_metrics(on, {"col": results})
    assert metrics["eval/col"] == metrics["eval/col-pass@1"] == 0.5
    assert not [name for name in rollout_metrics(samples[:3], [1, 1, 1], seconds=1, num_gpus=1) if "zero_std" in name]


def test_speculation() -> None:
    """Two requests of one sample, one of another, and one of an engine that does none."""
    one, other = finished(0, [3]), finished(1, [3])
    for sample, accepted, tokens in ((one, 3, 5), (one, 1, 3), (other, 0, 2)):
        meta = {"spec_verify_ct": 2, "spec_num_correct_drafts": accepted, "spec_num_proposed_drafts": 8}
        grow(sample, Generation([4] * tokens, [0.0] * tokens, "stop", [], 1, 0, None, None, meta))
    grow(other, Generation([4], [0.0], "stop", [], 1, 0, None, None, {}))
    metrics = rollout_metrics([one, other, finished(2, [3])], [0, 0, 0], seconds=1, num_gpus=1)
    assert metrics["rollout/spec_accept_rate"] == 4 / 24
    assert metrics["rollout/spec_accept_length"] == 10 / 6
