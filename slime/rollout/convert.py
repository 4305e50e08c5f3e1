"""From samples to batches, one a data-parallel rank.

Held: every sample is in exactly one batch; a batch lists its samples in the order of training, so that each micro-batch
is a slice of it; the denominators of a step count the samples and tokens of all ranks, and so do the sizes of wholes.

Shape suffixes, as in slime.data.batch: N samples · T tokens · R response tokens · L layers · K experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import Any

import numpy as np

from slime import schedule
from slime.config import Config, architecture
from slime.config.hooks import load_hook
from slime.data.batch import Batch, Step
from slime.data.numbers import as_array
from slime.data.sample import Sample, SampleError, Status
from slime.rollout.hooks import keeping_numbers
from slime.rollout.scores import FAILURE
from slime.rollout.types import RolloutError, untaken

CONVERT = "--custom-convert-samples-to-train-data-path"
LOG_PROBS = ("rollout_log_probs", "teacher_log_probs")
EXPERTS = "rollout_routed_experts"
VALUES = {"tokens": np.int32, "loss_masks": np.float32, **dict.fromkeys(LOG_PROBS, np.float64)}
"""Columns whose entries are lists of numbers, and what an array of one is made as."""
REQUIRED_COLUMNS = ("tokens", "response_lengths", "loss_masks", "rewards")


def columns(
    config: Config, samples: Sequence[Sample], raw_rewards: Sequence[float], rewards: Sequence[float]
) -> dict[str, Sequence[Any]]:
    """Columns of `training_data`, or of a user's conversion in its place. `raw_rewards` and `rewards` (normalised) have
    one number a sample.

    Raises SampleError for a sample that contradicts itself, and when only some carry log-probs; RolloutError when there
    is no sample at all, or when what a custom conversion returns does not fit together.
    """
    if not samples:
        raise RolloutError("the rollout has no samples, so there is nothing to train on")
    convert = load_hook(CONVERT, config.custom_convert_samples_to_train_data_path)
    if convert is None:
        return training_data(samples, raw_rewards, rewards)
    with keeping_numbers(samples, convert):
        data = convert(config, samples)
    return _completed(data, samples)


def removed_because(samples: Sequence[Sample], data: Mapping[str, Sequence[Any]] | None) -> Iterator[str | None]:
    """Why each sample of a batch is not trained on; None if it is. `data`: the columns that were made of it, if any."""
    included = None if data is None else set(data["sample_indices"])
    for number, sample in zip(_numbers(samples), samples, strict=True):
        if sample.remove_sample:
            failure = sample.metadata.get(FAILURE)
            yield "removed from the batch (remove_sample)" if failure is None else f"no reward: {failure}"
        else:
            yield None if included is None or number in included else f"left out by {CONVERT}"


def _numbers(samples: Sequence[Sample]) -> list[int]:
    """What a batch calls them: each that has no number gets one that no other has."""
    free = untaken(s.index for s in samples)
    return [next(free) if s.index is None else s.index for s in samples]


def training_data(
    samples: Sequence[Sample], raw_rewards: Sequence[float], rewards: Sequence[float]
) -> dict[str, list[Any]]:
    """Columns of one entry a sample; the same that users' conversions return."""
    for sample in samples:
        sample.check()
        if not sample.prompt_length:
            raise SampleError(f"{sample.name} has no token before its response, so nothing predicts the first of it")
    data = {
        "tokens": [s.tokens for s in samples],
        "response_lengths": [s.response_length for s in samples],
        "loss_masks": [_loss_mask(s) for s in samples],
        "rewards": list(rewards),
        "raw_reward": list(raw_rewards),
        "truncated": [s.status == Status.TRUNCATED for s in samples],
        "group_indices": [s.group_index for s in samples],
        "sample_indices": _numbers(samples),
    }
    if any(s.train_metadata is not None for s in samples):
        data["train_metadata"] = [s.train_metadata for s in samples]
    for name in LOG_PROBS:
        if _all_carry(samples, name):
            data[name] = [[] if (values := getattr(s, name)) is None else values for s in samples]
    if any(s.rollout_routed_experts is not None for s in samples) and _all_carry(samples, EXPERTS):
        data[EXPERTS] = [s.rollout_routed_experts for s in samples]
    return data


def _all_carry(samples: Sequence[Sample], name: str) -> bool:
    """Whether all that have a response carry this field. Raises SampleError when only some do."""
    responding = [s for s in samples if s.response_length]
    without = [s for s in responding if getattr(s, name) is None]
    if without and len(without) < len(responding):
        names = ", ".join(s.name for s in without[:5])
        raise SampleError(f"{len(without)} of {len(samples)} samples carry no {name}, the others do: {names}")
    return not without


def assemble(
    config: Config, data: Mapping[str, Sequence[Any]], *, dp_size: int, scratch: Scratch | None = None
) -> Iterator[Batch]:
    """Batches for `dp_size` ranks: divides the columns among ranks, steps and micro-batches, and lays them out as
    arrays. With `scratch` the tokens of a batch are there until the next but one is asked for.

    Raises SampleError for what can't be trained on: a token that is not in the vocabulary, a number that is none.
    """
    data = {**data, "loss_masks": [as_array(mask, np.float32) for mask in data["loss_masks"]]}
    lengths = list(map(len, data["tokens"]))
    wholes_N = _wholes(data)
    ranks = schedule.plan(
        lengths,
        dp_size=dp_size,
        num_steps=config.num_steps_per_rollout,
        wholes=wholes_N.tolist(),
        balance=config.balance_data or config.balance_by_flops,
        work=_flops(config, lengths, data["response_lengths"]) if config.balance_by_flops else None,
        micro_batch_multiple=_micro_batch_multiple(config),
        **_micro_batch_limit(config),
    )
    unmasked_N = np.array([np.count_nonzero(mask) for mask in data["loss_masks"]], np.int64)
    for number, unmasked, mask in zip(data["sample_indices"], unmasked_N, data["loss_masks"], strict=True):
        if mask.sum() != unmasked:
            raise SampleError(f"sample {number}: its loss mask has other numbers than 0 and 1")
    sizes = []  # of each step over all ranks: its samples, unmasked tokens and wholes
    for of_ranks in zip(*(rank.steps for rank in ranks), strict=True):
        members = list(chain.from_iterable(chain.from_iterable(of_ranks)))
        sizes.append((len(members), int(unmasked_N[members].sum()), len(set(wholes_N[members].tolist()))))
    data["whole_sizes"] = np.bincount(wholes_N, weights=unmasked_N)[wholes_N]
    scored = _scored(config, ranks, lengths)
    new = _new if scratch is None else scratch.array
    vocab_size = architecture.read(config.hf_checkpoint)["vocab_size"]
    for rank, micro_batches in zip(ranks, scored, strict=True):
        if scratch is not None:
            scratch.turn()
        batch = _batch(data, rank, sizes, micro_batches, new)
        _check_values(batch, vocab_size)
        yield batch


def _scored(config: Config, ranks: Sequence[schedule.RankPlan], lengths: list[int]) -> Sequence[list[list[int]] | None]:
    """Micro-batches of passes without gradients, where they differ from those of the steps."""
    if not config.use_dynamic_batch_size or config.log_probs_max_tokens_per_gpu == config.max_tokens_per_gpu:
        return [None] * len(ranks)
    packed = schedule.pack(
        [rank.samples for rank in ranks],
        lengths,
        None,
        config.log_probs_max_tokens_per_gpu * config.context_parallel_size,
        _micro_batch_multiple(config),
    )
    places = [{sample: place for place, sample in enumerate(rank.samples)} for rank in ranks]
    return [
        [[place[sample] for sample in micro_batch] for micro_batch in micro_batches]
        for place, micro_batches in zip(places, packed, strict=True)
    ]


class Scratch:
    """Memory for the tokens of one batch after the other, in two places by turns, so that one can be copied away while
    the next is laid out: what is new to a process costs more than writing to it."""

    def __init__(self) -> None:
        self._of: dict[str, np.ndarray] = {}
        self._other: dict[str, np.ndarray] = {}

    def turn(self) -> None:
        """From now on the place of the batch before the last is used again."""
        self._of, self._other = self._other, self._of

    def array(self, name: str, size: int, dtype: type) -> np.ndarray:
        """An array of the column `name`, in its place."""
        num_bytes = size * np.dtype(dtype).itemsize
        if name not in self._of or self._of[name].nbytes < num_bytes:
            self._of[name] = np.empty(num_bytes + num_bytes // 8, np.uint8)
        return self._of[name][:num_bytes].view(dtype)


def _new(name: str, size: int, dtype: type) -> np.ndarray:
    return np.empty(size, dtype)


def _wholes(data: Mapping[str, Sequence[Any]]) -> np.ndarray:
    """For each sample the number of what it is a part of: those that fanned out of one share group and index."""
    numbers: dict[tuple[Any, Any], int] = {}
    keys = zip(data["group_indices"], data["sample_indices"], strict=True)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _batch(
    data: Mapping[str, Sequence[Any]],
    rank: schedule.RankPlan,
    sizes: list[tuple[int, int, int]],
    scored: list[list[int]] | None,
    new: Callable[[str, int, type], np.ndarray],
) -> Batch:
    order = rank.samples

    def column(name: str, dtype: type) -> np.ndarray:
        values = data[name]
        return np.array([values[i] for i in order], dtype)

    def ragged(name: str, dtype: type, lengths_N: np.ndarray) -> np.ndarray:
        values = data[name]
        joined = new(name, int(lengths_N.sum()), dtype)
        if order:
            np.concatenate([as_array(values[i], dtype) for i in order], out=joined, casting="unsafe")
        return joined

    total_lengths_N = np.array([len(data["tokens"][i]) for i in order], np.int32)
    response_lengths_N = column("response_lengths", np.int32)
    position = count()
    return Batch(
        tokens_T=ragged("tokens", np.int32, total_lengths_N),
        total_lengths_N=total_lengths_N,
        response_lengths_N=response_lengths_N,
        loss_mask_R=ragged("loss_masks", np.float32, response_lengths_N),
        rewards_N=column("rewards", np.float32),
        raw_rewards_N=column("raw_reward", np.float32),
        group_ids_N=column("group_indices", np.int64),
        sample_ids_N=column("sample_indices", np.int64),
        truncated_N=column("truncated", np.bool_),
        whole_sizes_N=column("whole_sizes", np.int64),
        steps=[
            Step(
                [list(islice(position, len(micro_batch))) for micro_batch in micro_batches],
                num_samples=num_samples,
                num_tokens=num_tokens,
                num_wholes=num_wholes,
            )
            for micro_batches, (num_samples, num_tokens, num_wholes) in zip(rank.steps, sizes, strict=True)
        ],
        **{f"{name}_R": ragged(name, np.float32, response_lengths_N) if name in data else None for name in LOG_PROBS},
        routed_experts_TLK=_experts(data, order) if EXPERTS in data else None,
        train_metadata=[data["train_metadata"][i] for i in order] if "train_metadata" in data else None,
        scored=scored,
    )


def _check_values(batch: Batch, vocab_size: int) -> None:
    """Raises SampleError for what would be a loss of nan, or none at all, in training."""
    tokens_T = batch.tokens_T
    if len(tokens_T) and tokens_T.view(np.uint32).max() >= vocab_size:  # negative ones are larger still
        at = int(np.argmax((tokens_T < 0) | (tokens_T >= vocab_size)))
        what = f"token {tokens_T[at]} is not in the vocabulary of {vocab_size}"
        raise SampleError(f"{_sample_at(batch, at, batch.total_lengths_N)}: {what}")
    for name in ("rewards_N", "raw_rewards_N", *(f"{name}_R" for name in LOG_PROBS)):
        values = getattr(batch, name)
        if values is not None and not np.isfinite(values.sum(dtype=np.float64)):
            at = int(np.argmin(np.isfinite(values)))
            lengths_N = batch.response_lengths_N if name.endswith("_R") else np.ones_like(batch.response_lengths_N)
            what = f"among its {name.rpartition('_')[0]} is {values[at]}"
            raise SampleError(f"{_sample_at(batch, at, lengths_N)}: {what}")


def _sample_at(batch: Batch, position: int, lengths_N: np.ndarray) -> str:
    """The sample with the value at this position of a column, in which each sample has so many values."""
    return f"sample {batch.sample_ids_N[np.searchsorted(np.cumsum(lengths_N), position, side='right')]}"


def _experts(data: Mapping[str, Sequence[Any]], order: Sequence[int]) -> np.ndarray:
    """Of all tokens. The last token of a sample, with which the engine did not compute, and samples without a response
    go to the first experts: nothing that is trained on depends on them."""
    num_layers, topk = next(experts for experts in data[EXPERTS] if experts is not None).shape[1:]
    lengths = [len(data["tokens"][i]) for i in order]
    experts_TLK = np.tile(np.arange(topk, dtype=np.int16), (sum(lengths), num_layers, 1))
    start = 0
    for i, length in zip(order, lengths, strict=True):
        if data[EXPERTS][i] is not None:
            experts_TLK[start : start + length - 1] = data[EXPERTS][i]
        start += length
    return experts_TLK


def _loss_mask(sample: Sample) -> Sequence[float]:
    if sample.loss_mask is None or sample.remove_sample:
        return np.broadcast_to(np.float32(not sample.remove_sample), sample.response_length)  # one number in memory
    return sample.loss_mask


def _flops(config: Config, lengths: Sequence[int], response_lengths: Sequence[int]) -> list[int]:
    model = architecture.read(config.hf_checkpoint)
    return schedule.forward_flops(model, np.asarray(lengths), np.asarray(response_lengths)).tolist()


def _micro_batch_limit(config: Config) -> dict[str, int]:
    if config.use_dynamic_batch_size:
        return {"max_tokens": config.max_tokens_per_gpu * config.context_parallel_size}
    return {"micro_batch_size": config.micro_batch_size}


def _micro_batch_multiple(config: Config) -> int:
    """Interleaved schedules want a multiple of the pipeline's size."""
    interleaved = config.megatron.get("virtual_pipeline_model_parallel_size") is not None
    return config.pipeline_model_parallel_size if interleaved else 1


def _completed(data: Any, samples: Sequence[Sample]) -> dict[str, Sequence[Any]]:
    """What a user's conversion returned of the samples, checked, and with the columns that it left out."""
    if not isinstance(data, dict):
        raise RolloutError(f"{CONVERT} returned {type(data).__name__}, not a dict of columns")
    if missing := [name for name in REQUIRED_COLUMNS if name not in data]:
        raise RolloutError(f"{CONVERT} returned no {', '.join(missing)}; it must return {', '.join(REQUIRED_COLUMNS)}")
    for name, values in data.items():
        if not hasattr(values, "__len__"):
            raise RolloutError(f"{CONVERT}: {name} is a {type(values).__name__}, not a list of one entry a sample")
    total = len(data["tokens"])
    if not total:
        raise RolloutError(f"{CONVERT} returned no entries: there is nothing to train on")
    numbers = _numbers(samples)
    if "sample_indices" not in data and total != len(samples):
        raise RolloutError(
            f"{CONVERT} returned {total} entries for {len(samples)} samples: `sample_indices` has to say which sample"
            " each is made of, by its index"
        )
    indices = data.get("sample_indices", numbers)
    if unknown := set(indices) - set(numbers):
        raise RolloutError(f"{CONVERT}: sample_indices has {min(unknown)}, which is no sample of this rollout")
    group_of = {number: sample.group_index for number, sample in zip(numbers, samples, strict=True)}
    unsaid = {
        "raw_reward": data["rewards"],
        "truncated": [False] * total,
        "group_indices": [group_of[number] for number in indices],
        "sample_indices": indices,
    }
    data = data | {name: values for name, values in unsaid.items() if name not in data}
    for name in ("rewards", "raw_reward"):
        try:
            data[name] = _of_numbers(np.asarray(data[name], np.float64))
        except (TypeError, ValueError) as error:
            raise RolloutError(f"{CONVERT}: {name} are no numbers: {error}") from error
    for name, values in data.items():
        if len(values) != total:
            raise RolloutError(f"{CONVERT}: {name} has {len(values)} entries, tokens has {total}")
    data |= {name: list(_arrays(name, data[name], dtype)) for name, dtype in VALUES.items() if name in data}
    for i, (tokens, n) in enumerate(zip(data["tokens"], data["response_lengths"], strict=True)):
        if not isinstance(n, int | float | np.number) and not hasattr(n, "__index__"):
            raise RolloutError(f"{CONVERT}: response_lengths of entry {i} is {n!r:.80}, not a number")
        if not 0 <= n < len(tokens):  # a token before the response predicts its first
            raise RolloutError(f"{CONVERT}: entry {i} has {len(tokens)} tokens and a response of {n}")
        for name in VALUES.keys() & data.keys() - {"tokens"}:
            if len(data[name][i]) != n:
                raise RolloutError(
                    f"{CONVERT}: {name} of entry {i} has {len(data[name][i])} values, the response has {n}"
                )
    return data


def _arrays(name: str, column: Sequence[Any], dtype: type) -> Iterator[np.ndarray]:
    whole = issubclass(dtype, np.integer)
    for i, values in enumerate(column):
        try:
            array = _of_numbers(as_array(values, np.float64 if whole else dtype))
        except (TypeError, ValueError, OverflowError) as error:
            raise RolloutError(f"{CONVERT}: {name} of entry {i} are no numbers: {error}") from error
        if whole:
            with np.errstate(invalid="ignore"):  # what is out of range becomes another number
                array, given = array.astype(dtype, copy=False), array
            if (others := given[array != given]).size:
                raise RolloutError(f"{CONVERT}: {name} of entry {i}: {others[0]:.12g} is no token")
        yield array


def _of_numbers(array: np.ndarray) -> np.ndarray:
    if array.ndim != 1 or array.dtype.kind not in "iufb":
        raise TypeError(f"an array of {array.dtype}, shape {array.shape}")
    return array
