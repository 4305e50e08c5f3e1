"""The plan of a rollout's training: samples -> optimizer steps -> data-parallel ranks -> micro-batches.

Held for any input: every sample is in exactly one micro-batch of one rank; the ranks of a step have the same number of
micro-batches (a rank with fewer samples than that has empty ones), because pipelines and collectives of all ranks move
together. Only lengths matter here, never contents: integers in, integers out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from slime.schedule.balance import largest_differencing, round_robin
from slime.schedule.packing import by_count, by_tokens


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one data-parallel rank trains on."""

    steps: list[list[list[int]]]  # step -> micro-batch -> samples (positions in the rollout)

    @property
    def samples(self) -> list[int]:
        """All samples of the rank, in the order of training."""
        return list(chain.from_iterable(chain.from_iterable(self.steps)))


def plan(
    lengths: Sequence[int],
    *,
    dp_size: int,
    num_steps: int = 1,
    wholes: Sequence[int] | None = None,
    micro_batch_size: int | None = None,
    max_tokens: int | None = None,
    balance: bool = False,
    work: Sequence[int] | None = None,
    micro_batch_multiple: int = 1,
) -> list[RankPlan]:
    """Plans the training on samples of the given lengths (tokens, prompt and response). One RankPlan a rank.

    Steps take consecutive samples, their sizes differ by one at most. So `num_steps` = samples / global batch gives
    global batches of exactly that size where it divides; and where filters or fan-out changed the number of samples,
    the number of steps stays, and nothing is trimmed: the loss of a step averages over the samples it really has.
    Fewer samples than steps make fewer steps. `wholes`: samples with the same number are parts of one that fanned out;
    they stay in one step, and its size is counted in wholes.

    Micro-batches hold either at most `micro_batch_size` samples or at most `max_tokens` tokens (of one
    context-parallel group: tokens a GPU times its size); a sample longer than that is alone. Their number in a step is
    a multiple of `micro_batch_multiple` (virtual pipelines need one of the pipeline's size).

    Ranks get samples in turn, or, with `balance`, so that their `work` (of each sample; its tokens, unless given) is
    about equal; with a fixed micro-batch size also their counts, since there the number of samples sets the number of
    micro-batches.
    """
    if (micro_batch_size is None) == (max_tokens is None):
        raise ValueError("plan() takes either micro_batch_size or max_tokens")
    for name, value in {
        "dp_size": dp_size,
        "num_steps": num_steps,
        "micro_batch_size": micro_batch_size,
        "max_tokens": max_tokens,
        "micro_batch_multiple": micro_batch_multiple,
    }.items():
        if value is not None and value < 1:
            raise ValueError(f"plan(): {name} is {value}, it must be at least 1")
    lengths = [int(length) for length in lengths]
    if lengths and min(lengths) < 1:
        raise ValueError(f"plan(): sample {lengths.index(min(lengths))} has {min(lengths)} tokens")

    work = lengths if work is None else [int(amount) for amount in work]
    if len(work) != len(lengths):
        raise ValueError(f"plan(): work of {len(work)} samples, lengths of {len(lengths)}")
    parts_of: dict[int, list[int]] = {}
    for sample, whole in enumerate(range(len(lengths)) if wholes is None else wholes):
        parts_of.setdefault(whole, []).append(sample)
    num_steps = min(num_steps, len(parts_of))
    steps = by_count(list(parts_of.values()), num_steps) if num_steps else []
    plans = [RankPlan(steps=[]) for _ in range(dp_size)]
    for step in (list(chain.from_iterable(parts)) for parts in steps):
        if balance:
            weights = [work[sample] for sample in step]
            parts = largest_differencing(weights, dp_size, equal_counts=max_tokens is None)
        else:
            parts = round_robin(len(step), dp_size)
        ranks = [[step[position] for position in part] for part in parts]
        packed = pack(ranks, lengths, micro_batch_size, max_tokens, micro_batch_multiple)
        for rank_plan, micro_batches in zip(plans, packed, strict=True):
            rank_plan.steps.append(micro_batches)
    return plans


def pack(
    ranks: list[list[int]], lengths: list[int], micro_batch_size: int | None, max_tokens: int | None, multiple: int
) -> list[list[list[int]]]:
    """Micro-batches of each rank of one pass: equally many, and a multiple of `multiple`. The limits are `plan`'s."""
    if max_tokens is None:
        most = max(len(samples) for samples in ranks)
        count = _round_up(-(-most // micro_batch_size), multiple)
        return [by_count(samples, count) for samples in ranks]
    count = 1
    while True:
        packed = [by_tokens(samples, lengths, max_tokens, count) for samples in ranks]
        needed = _round_up(max(map(len, packed)), multiple)
        if all(len(micro_batches) == needed for micro_batches in packed):
            return packed
        count = needed  # packing again, into more: grows until all agree, at the latest with one sample in each


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
