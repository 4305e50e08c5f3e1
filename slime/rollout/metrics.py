"""Metrics of a rollout and of an evaluation, from their samples, under the names of slime.observe.names.

A metric is left out, never guessed, where the samples carry nothing to compute it from.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from slime.config import Config
from slime.data.numbers import as_array
from slime.data.sample import Sample, Status
from slime.inference.client import Generation
from slime.rollout.scores import FAILURE, RETRIES
from slime.rollout.types import whole_ids

END_OF_THINKING = "</think>"
REPETITION_MIN_CHARACTERS = 1_000
REPETITION_MAX_CHARACTERS = 10_000  # the tail is enough: a response that falls into a loop stays in it
REPETITION_RATIO = 10.0  # prose compresses by 2 to 4, code by up to 6
TURNS = "round_number"  # in the metadata of a sample of several turns: how many it has
DRIFT = "template_drift"  # and whether its chat template would write what it has otherwise
STATISTICS = {"mean": np.mean, "median": np.median, "max": np.max, "min": np.min}


def demonstration_metrics(samples: Sequence[Sample], *, seconds: float) -> dict[str, float]:
    """Of demonstrations, which nobody sampled nor graded; to have them ready took `seconds`."""
    return {**_of_responses("rollout", samples), "perf/rollout_time": seconds}


def rollout_metrics(
    samples: Sequence[Sample], raw_rewards: Sequence[float], *, seconds: float, num_gpus: int | None
) -> dict[str, float]:
    """Of the samples of one rollout, which took `seconds` on `num_gpus` devices. `raw_rewards`: one a sample. Without
    devices nothing was sampled, so there is no speed.

    longest_sample_tokens_per_sec is the length of the longest response over the time of the rollout, or over its own in
    the engines where it was begun before: in RL the slowest sample, not the total throughput, sets the pace.
    """
    lengths = np.array([sample.response_length for sample in samples])
    longest = max(samples, key=lambda sample: (sample.response_length, sample.generation_time))
    groups = _by_group(samples, raw_rewards)
    metrics = {
        **_of_responses("rollout", samples),
        "rollout/raw_reward": float(np.mean([reward for of_group in groups for reward in of_group])),
        "rollout/truncated_ratio": _share(sample.status == Status.TRUNCATED for sample in samples),
        **_zero_std(groups),
        **_reward_failures("rollout/", samples),
        **_prefix_cache(samples),
        **_speculation(samples),
        "perf/rollout_time": seconds,
    }
    if num_gpus is not None:
        metrics |= {
            "perf/longest_sample_tokens_per_sec": float(lengths.max() / max(seconds, longest.generation_time)),
            "perf/tokens_per_gpu_per_sec": float(lengths.sum() / seconds / num_gpus),
            "perf/effective_tokens_per_gpu_per_sec": sum(map(_trained_tokens, samples)) / seconds / num_gpus,
        }
    if any(sample.non_generation_time for sample in samples):
        metrics |= _describe("perf/non_generation_time", [sample.non_generation_time for sample in samples])
    return metrics


def further_metrics(config: Config, samples: Sequence[Sample], raw_rewards: Sequence[float]) -> dict[str, float]:
    """What --log-multi-turn, --log-passrate, --log-correct-samples and --log-reward-category add to a rollout's."""
    metrics: dict[str, float] = {}
    if config.log_multi_turn:
        metrics |= _describe("multi_turn/raw_response_length", [sample.response_length for sample in samples])
        metrics |= _describe("multi_turn/wo_obs_response_length", list(map(_unmasked_tokens, samples)))
        if turns := [sample.metadata[TURNS] for sample in samples if TURNS in sample.metadata]:
            described = {f"round_number_{name}": float(function(turns)) for name, function in STATISTICS.items()}
            metrics |= {"multi_turn_metric/" + name: value for name, value in described.items()}
        if drifts := [sample.metadata[DRIFT] for sample in samples if DRIFT in sample.metadata]:
            metrics["multi_turn_metric/template_drift"] = _share(map(bool, drifts))
    if config.log_passrate:
        metrics |= _pass_at(config, "passrate/", samples, raw_rewards)
    if config.log_correct_samples:
        metrics |= _correct_and_not(config, samples, raw_rewards)
    if config.log_reward_category is not None:
        of_dicts = [sample.reward for sample in samples if isinstance(sample.reward, dict)]
        counts = Counter(str(reward.get(config.log_reward_category)) for reward in of_dicts)
        metrics |= {f"rollout/error_cat/{name}": count / len(samples) for name, count in sorted(counts.items())}
    return metrics


def eval_metrics(config: Config, data: dict[str, dict[str, list[Any]]]) -> dict[str, float]:
    """Of the `data` of a RolloutFnEvalOutput."""
    metrics: dict[str, float] = {}
    for name, results in data.items():
        rewards, samples = results["rewards"], results.get("samples")
        if samples:
            rewards = [reward for _, reward, _ in _wholes(samples, rewards)]
        metrics[f"eval/{name}"] = float(np.mean(rewards))
        metrics[f"eval/{name}-truncated_ratio"] = _share(results["truncated"])
        if samples:
            metrics |= _of_responses(f"eval/{name}", samples)
            metrics |= _pass_at(config, f"eval/{name}-", samples, results["rewards"])
            metrics |= _reward_failures(f"eval/{name}-", samples)
    return metrics


def request_metrics(generations: Sequence[Generation]) -> dict[str, float]:
    """What the engines measured of the requests that the default generation made."""
    metrics: dict[str, float] = {}
    for name, times in {
        "e2e_latency": [g.e2e_latency for g in generations if g.e2e_latency is not None],
        "queue_time": [g.queue_time for g in generations if g.queue_time is not None],
    }.items():
        if times:
            metrics |= _describe(f"perf/request/{name}", times)
    return metrics


def repeats_itself(text: str) -> bool:
    """Whether the end of a long text compresses as only loops do."""
    if len(text) < REPETITION_MIN_CHARACTERS:
        return False
    tail = text[-REPETITION_MAX_CHARACTERS:].encode()
    return len(tail) > REPETITION_RATIO * len(zlib.compress(tail, level=1))


def pass_at(k: int, n: int, correct: int) -> float:
    """The chance that of k of n samples, drawn without replacement, one at least is correct (arXiv:2107.03374)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _of_responses(prefix: str, samples: Sequence[Sample]) -> dict[str, float]:
    """What is shown of the responses of a rollout and of each eval set."""
    return {
        **_describe(f"{prefix}/response_len", [sample.response_length for sample in samples]),
        f"{prefix}/repetition_frac": _share(repeats_itself(sample.response) for sample in samples),
        f"{prefix}/thinking_ratio": _share(END_OF_THINKING in sample.response for sample in samples),
    }


def _zero_std(groups: Iterable[list[float]]) -> dict[str, int]:
    """How many groups have one reward throughout, by that reward: they teach nothing to group-relative estimators."""
    same = Counter(round(float(of_group[0]), 1) for of_group in groups if len(of_group) > 1 and len(set(of_group)) == 1)
    return {f"rollout/zero_std/count_{reward}": count for reward, count in sorted(same.items())}


def _reward_failures(prefix: str, samples: Sequence[Sample]) -> dict[str, int]:
    """How many rewards were not had, by --rm-failure-policy 0 or dropped, and how often one was asked for again."""
    return {
        f"{prefix}reward_failures": sum(FAILURE in sample.metadata for sample in samples),
        f"{prefix}reward_retries": sum(sample.metadata.get(RETRIES, 0) for sample in samples),
    }


def _pass_at(config: Config, prefix: str, samples: Sequence[Sample], rewards: Sequence[float]) -> dict[str, float]:
    """pass@k for each --pass-at-k, else 1, 2, 4 ..., that the prompt with the fewest samples has as many of."""
    groups = [[reward > config.solved_above for reward in of_group] for of_group in _by_group(samples, rewards)]
    n = min(map(len, groups))
    chosen = config.pass_at_k or [2**i for i in range(n.bit_length()) if n > 1]
    return {
        f"{prefix}pass@{k}": float(np.mean([pass_at(k, len(group), sum(group)) for group in groups]))
        for k in chosen
        if k <= n
    }


def _prefix_cache(samples: Sequence[Sample]) -> dict[str, float]:
    known = [sample.prefix_cache_info for sample in samples if sample.prefix_cache_info]
    prompt_tokens = sum(info.get("total_prompt_tokens", 0) for info in known)
    if not prompt_tokens:
        return {}
    cached_tokens = sum(info.get("cached_tokens", 0) for info in known)
    return {
        "rollout/prefix_cache_hit_rate": cached_tokens / prompt_tokens,
        "rollout/avg_cached_tokens_per_sample": cached_tokens / len(known),
    }


def _speculation(samples: Sequence[Sample]) -> dict[str, float]:
    """Of all tokens that a draft model proposed, how many the model took; and how many tokens a verification gave."""
    total = Counter()
    for sample in samples:
        total.update(sample.spec_info)
    metrics: dict[str, float] = {}
    if total["proposed_drafts"]:
        metrics["rollout/spec_accept_rate"] = total["accepted_drafts"] / total["proposed_drafts"]
    if total["verifications"]:
        metrics["rollout/spec_accept_length"] = total["tokens"] / total["verifications"]
    return metrics


def _correct_and_not(config: Config, samples: Sequence[Sample], raw_rewards: Sequence[float]) -> dict[str, float]:
    """The solved ones, and the others. The parts of one sample that has fanned out are one."""
    wholes = [(reward > config.solved_above, parts) for _, reward, parts in _wholes(samples, raw_rewards)]
    metrics = {"rollout/correct_ratio": _share(solved for solved, _ in wholes)}
    for name, is_chosen in {"correct": True, "incorrect": False}.items():
        chosen = [parts for solved, parts in wholes if solved is is_chosen]
        if chosen:
            lengths = [sum(part.response_length for part in parts) for parts in chosen]
            metrics |= _describe(f"rollout/{name}_response_len", lengths)
            truncated = [any(part.status == Status.TRUNCATED for part in parts) for parts in chosen]
            metrics[f"rollout/{name}_truncated_ratio"] = _share(truncated)
    return metrics


def _wholes(samples: Sequence[Sample], rewards: Sequence[float]) -> Iterable[tuple[int | None, float, list[Sample]]]:
    """(group, reward, its parts) of each sample that was asked for, one that has fanned out being one again; its reward
    is the mean of those of its parts."""
    parts: dict[int, list[tuple[Sample, float]]] = defaultdict(list)
    for whole, sample, reward in zip(whole_ids(samples), samples, rewards, strict=True):
        parts[whole].append((sample, float(reward)))
    for members in parts.values():
        of_parts = [part for part, _ in members]
        yield of_parts[0].group_index, sum(reward for _, reward in members) / len(members), of_parts


def _by_group(samples: Sequence[Sample], rewards: Sequence[float]) -> Iterable[list[float]]:
    """The rewards of each group; of what has fanned out, one."""
    groups = defaultdict(list)
    for group, reward, _ in _wholes(samples, rewards):
        groups[group].append(reward)
    return groups.values()


def _trained_tokens(sample: Sample) -> int:
    return 0 if sample.remove_sample else _unmasked_tokens(sample)


def _unmasked_tokens(sample: Sample) -> int:
    return sample.response_length if sample.loss_mask is None else int(as_array(sample.loss_mask, np.float32).sum())


def _describe(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}/{statistic}": float(function(values)) for statistic, function in STATISTICS.items()}


def _share(flags: Iterable[bool]) -> float:
    flags = list(flags)
    return sum(flags) / len(flags)
