"""Functions as users write them, for the options that take a path."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import aiohttp

from slime.data.sample import Sample, Status
from slime.rollout.generator import Generator
from slime.rollout.types import DynamicFilterOutput

# --custom-convert-samples-to-train-data-path


def responses_only(args: Any, samples: list[Sample]) -> dict[str, Any]:
    """Keeps one token of each prompt."""
    return {
        "tokens": [
            sample.tokens[sample.prompt_length - 2 : 1] + sample.tokens[sample.prompt_length :] for sample in samples
        ],
        "response_lengths": [sample.response_length for sample in samples],
        "loss_masks": [[1] * sample.response_length for sample in samples],
        "rewards": [sample.reward for sample in samples],
    }


def returns_nothing(args: Any, samples: list[Sample]) -> None: ...


def forgets_masks(args: Any, samples: list[Sample]) -> dict[str, Any]:
    data = responses_only(args, samples)
    del data["loss_masks"]
    return data


def leaves_out_the_first(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples[1:])


def says_what_it_leaves_out(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples[1:]) | {"sample_indices": [sample.index for sample in samples[1:]]}


def makes_up_a_sample(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"sample_indices": [7] * len(samples)}


def leaves_out_all(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, [])


def rewards_in_words(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"rewards": ["good"] * len(samples)}


def loses_a_reward(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"rewards": [0.0]}


def cuts_a_mask(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"loss_masks": [[1]] * len(samples)}


def has_no_log_probs(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"rollout_log_probs": None}


def has_no_log_probs_of_one(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"rollout_log_probs": [[-0.5, -0.5], None]}


def tokens_in_words(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"tokens": [["a", "b", "c"]] * len(samples)}


def lengths_in_words(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"response_lengths": ["two"] * len(samples)}


def one_number_for_all(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return responses_only(args, samples) | {"sample_indices": 0}


# --custom-reward-post-process-path


def double(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    raw = [sample.reward for sample in samples]
    return raw, [2 * reward for reward in raw]


def forgets_to_return(args: Any, samples: list[Sample], **kwargs: Any) -> None: ...


def one_reward(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    return [sample.reward for sample in samples], [0.0]


def not_a_number(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    raw = [sample.reward for sample in samples]
    return raw, [0.0, *[float("nan")] * (len(raw) - 1)]


# --custom-generate-function-path


async def generate_over_http(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Talks to the router itself, as functions for agents and tools do."""
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    body = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        output = await answer.json()
    sample.tokens = sample.tokens + output["output_ids"]
    sample.response_length = len(output["output_ids"])
    sample.rollout_log_probs = [entry[0] for entry in output["meta_info"]["output_token_logprobs"]]
    sample.response = "said"
    sample.metadata["params"] = sampling_params
    sample.status = Status.COMPLETED
    return sample


async def two_of_each(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Fans out into a first part with a reward of its own and a second one for the reward function."""
    return [
        Sample(tokens=[1, 2, 3], response_length=1, reward=0.25, response="first", metadata={"evaluation": evaluation}),
        Sample(tokens=[1, 2, 3], response_length=1, response="second", status=Status.COMPLETED, label="second"),
    ]


async def raises_for_the_third(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    if sample.index == 2:
        raise KeyError("tool")
    try:
        await asyncio.sleep(60)
    finally:
        CANCELLED.append(sample.index)
    return sample


CANCELLED: list[int] = []


GRADED = asyncio.Event()


async def waits_until_another_is_graded(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    if sample.index > 0:
        await GRADED.wait()
    return sample


async def tells_that_one_is_graded(args: Any, sample: Sample, **kwargs: Any) -> float:
    GRADED.set()
    return 0.0


async def returns_text(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> str:
    return "4"


async def gives_up(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    sample.status = Status.ABORTED
    return sample


async def never_returns(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    await asyncio.Event().wait()
    return sample


# --custom-rm-path


async def length_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    return float(sample.response_length)


async def rank_reward(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    """Needs the whole group: place by length."""
    lengths = sorted(sample.response_length for sample in samples)
    return [float(lengths.index(sample.response_length)) for sample in samples]


JUDGED_IN_VAIN: set[int] = set()


async def first_fails_late_for_groups_from_four_on(args: Any, sample: Sample, **kwargs: Any) -> float:
    if sample.group_index >= 4 and sample.index not in JUDGED_IN_VAIN:
        JUDGED_IN_VAIN.add(sample.index)
        await asyncio.sleep(0.3)
        raise ValueError("the judge said nothing")
    return float(sample.index)


async def all_right(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    return [1.0] * len(samples)


async def raises_for_group_one(args: Any, sample: Sample, **kwargs: Any) -> float:
    if sample.group_index == 1:
        raise ValueError("judge is down")
    return 1.0


async def two_scores(args: Any, sample: Sample, **kwargs: Any) -> dict[str, float]:
    return {"right": 1.0, "brief": 0.5}


# --rollout-sample-hook-path, --rollout-sample-filter-path, --rollout-all-samples-process-path


def mark(args: Any, sample: Sample, *, rollout_id: int, evaluation: bool) -> Sample | None:
    """Sees the reward; replaces the samples with an odd index, changes the others."""
    if sample.index % 2:
        return Sample(group_index=sample.group_index, index=sample.index, metadata={"replaced": sample.reward})
    sample.metadata["seen"] = (rollout_id, evaluation, sample.reward)
    return None


def adds_ten(args: Any, sample: Sample, **kwargs: Any) -> None:
    sample.reward += 10


HOOKED_AT_ONCE = threading.Barrier(8)


def waits_until_all_eight_are_seen(args: Any, sample: Sample, **kwargs: Any) -> None:
    HOOKED_AT_ONCE.wait(20)


def remove_odd(args: Any, samples: list[Sample]) -> None:
    for sample in samples:
        sample.remove_sample = sample.index % 2 == 1


async def remove_odd_later(args: Any, samples: list[Sample]) -> None:
    await asyncio.sleep(0)
    remove_odd(args, samples)


async def says_thanks(args: Any, sample: Sample, **kwargs: Any) -> str:
    return "thanks"


def return_all(args: Any, all_samples: list[list[Sample]], data_source: Any) -> None:
    data_source.add_samples(all_samples)


async def says_a_root(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    sample.tokens, sample.response_length, sample.status = [1, 2, 3], 1, Sample.Status.COMPLETED
    sample.response, sample.label = r"\boxed{\sqrt{12}}", r"2\sqrt{3}" if sample.index else "4"
    return sample


MEETING = threading.Barrier(8)


def waits_for_all_eight(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Plain, and slow: it returns only when it runs for eight samples at once."""
    MEETING.wait(20)
    sample.tokens, sample.response, sample.response_length = [1, 2, 3], "met", 1
    sample.status = Sample.Status.COMPLETED
    return sample


# --rollout-function-path, --eval-function-path, --custom-rollout-log-function-path, ...


async def bare_groups_later(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    await asyncio.sleep(0)
    return bare_groups(args, rollout_id, data_source, evaluation)


def bare_groups(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Returns what older rollout functions did."""
    if evaluation:
        return {"mine": {"rewards": [1.0, 0.0], "truncated": [False, True], "samples": None}}
    groups = data_source.get_samples(args.rollout_batch_size)
    for sample in (sample for group in groups for sample in group):
        sample.tokens, sample.response_length, sample.reward = [1, 2], 1, float(sample.index)
    return groups


def forgets_what_was_truncated(*args: Any, evaluation: bool) -> Any:
    return {"mine": {"rewards": [1.0]}}


LOGGED: list[tuple[Any, ...]] = []


def log_rollout(rollout_id: int, args: Any, samples: list[Sample], extra_metrics: Any, rollout_time: float) -> bool:
    LOGGED.append((rollout_id, len(samples), extra_metrics))
    return True


async def log_rollout_later(*args: Any) -> bool:
    await asyncio.sleep(0)
    return log_rollout(*args)


def log_eval(rollout_id: int, args: Any, data: Any, extra_metrics: Any) -> bool:
    LOGGED.append((rollout_id, list(data), extra_metrics))
    return False


# --dynamic-sampling-filter-path, --buffer-filter-path


def keeps_even_groups(args: Any, samples: list[Sample], **kwargs: Any) -> DynamicFilterOutput:
    return DynamicFilterOutput(samples[0].group_index % 2 == 0, "odd")


async def keeps_group_three(args: Any, samples: list[Sample], **kwargs: Any) -> bool:
    return samples[0].group_index == 3


def keeps_what_sums_to_two_and_a_half(args: Any, samples: list[Sample], **kwargs: Any) -> bool:
    return sum(sample.reward for sample in samples) == 2.5


def breaks(args: Any, samples: list[Sample]) -> bool:
    raise KeyError("std")


ENGINE_IS_BUSY: list[Callable[[], bool]] = []


async def keeps_when_the_engine_is_busy(args: Any, samples: list[Sample]) -> bool:
    while not ENGINE_IS_BUSY[0]():
        await asyncio.sleep(0.02)
    return True


async def counts_up(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Says its index; rewards of groups 1 and 2 are equal."""
    sample.tokens, sample.response_length, sample.status = [1, 2, 3], 1, Sample.Status.COMPLETED
    sample.rollout_log_probs = [-1.0]
    sample.reward = 1.0 if sample.group_index in (1, 2) else float(sample.index)
    return sample


async def answers_at_once(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    sample.tokens, sample.response_length, sample.status = [1, 2, 3], 1, Sample.Status.COMPLETED
    sample.rollout_log_probs = [-1.0]
    return sample


ASKED_IN_VAIN: list[str | None] = []


async def asks_on_when_the_batch_is_full(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Of groups from four on. There is no engine."""
    if sample.group_index >= 4:
        await asyncio.sleep(0.3)
        (generation,) = await Generator.current().client.generate([1], {"max_new_tokens": 4})
        ASKED_IN_VAIN.append(generation.finish_reason)
        sample.status = Status.ABORTED
        return sample
    return await answers_at_once(args, sample, sampling_params)


async def odd_ones_ask_on_when_the_batch_is_full(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    if sample.index % 2 == 0 or sample.rollout_id:
        return await answers_at_once(args, sample, sampling_params)
    return await asks_on_when_the_batch_is_full(args, sample, sampling_params)


async def even_groups_never_end(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    if sample.group_index % 2 == 0:
        await asyncio.Event().wait()
    return await counts_up(args, sample, sampling_params)


def newest_first(args: Any, rollout_id: int | None, buffer: list[Any], num_samples: int) -> list[Any]:
    """Hands out the newest and throws away what is older than four groups."""
    del buffer[:-4]
    return [buffer.pop() for _ in range(min(num_samples, len(buffer)))]


# --max-weight-staleness: groups in HELD are under way until they are taken out

HELD: set[int] = set()


async def answers_when_not_held(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Says its index, by the weights that the engines have when it begins."""
    sample.weight_versions = [str(Generator.current().weight_version)]
    while sample.group_index in HELD:
        await asyncio.sleep(0.002)
    return await counts_up(args, sample, sampling_params)


async def breaks_when_not_held(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    made = await answers_when_not_held(args, sample, sampling_params)
    if sample.index == 0:
        raise KeyError("tool")
    return made


async def fans_out_when_not_held(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    made = await answers_when_not_held(args, sample, sampling_params)
    made.reward = None
    return [made, Sample(tokens=[1, 2, 3], response_length=1, rollout_log_probs=[-1.0], status=Status.COMPLETED)]


def ranks_in_group(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    return [float(i) for i in range(len(samples))]


# --mask-offpolicy-in-partial-rollout


def appends_by_hand(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """To so many tokens of its response as its metadata says; of the loss mask it says nothing."""
    kept = sample.metadata["kept"]
    sample.tokens = [*sample.tokens[: sample.prompt_length + kept], 30, 31, 32]
    sample.response_length = kept + 3
    sample.rollout_log_probs = [-1.0] * sample.response_length
    sample.status, sample.reward = Status.COMPLETED, 0.0
    return sample
