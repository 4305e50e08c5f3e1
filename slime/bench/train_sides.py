"""The two sides of the train bench on one training rank, and what is measured of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch.distributed as dist

from slime.bench.bare_loop import BareLoop
from slime.config import Config
from slime.data.batch import Batch
from slime.models import read_hf_config
from slime.rollout.convert import assemble
from slime.training.trainer import Trainer

SIGMA = 1.0  # of the log-normal distribution of lengths, that of the pack bench
SHORTEST, LONGEST = 1 / 16, 16  # where it is cut, by the median
PROMPT = 2  # tokens of each sample that are not trained on
SMALL = 8  # samples of a step that is repeated to see whether memory grows
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Step:
    seconds: float
    loss: float
    perf: Mapping[str, float]  # the trainer's, without "perf/"


def measure(rank: int, args: argparse.Namespace, config: Config, port: int) -> dict[str, Any]:
    """The figures of a TrainReport, and of its setup `tokens`, `longest` and `device`. Collective."""
    data = draw(args.samples, args.median, read_hf_config(config.hf_checkpoint)["vocab_size"])
    sides = Sides(config, rank, args.ranks, port)
    try:
        packed, longest = sides.batch(data), max(map(len, data["tokens"]))
        small = sides.batch({name: values[:SMALL] for name, values in data.items()})
        sides.bare(packed), sides.slime(packed)  # what happens once, happens now
        bare, slime = zip(*[(sides.bare(packed), sides.slime(packed)) for _ in range(args.rounds)], strict=True)
        padded = sides.batch(padded_to(longest, data))
        on_padded = [sides.slime(padded).seconds for _ in range(args.padded_rounds)]
        growth = sides.growth(small, args.memory_steps)
        peak = sides.trainer.peak
    finally:
        sides.close()
    seconds = median(step.seconds for step in slime)
    tflops = median(step.perf["actor_train_tflops"] for step in slime)
    return {
        "tokens": sum(map(len, data["tokens"])),
        "longest": longest,
        "device": peak.device,
        "seconds_bare": median(step.seconds for step in bare),
        "seconds": seconds,
        # Of neighbours in time, so that a machine that slows down meanwhile does not matter.
        "ratio": median(ours.seconds / theirs.seconds for theirs, ours in zip(bare, slime, strict=True)),
        "loss_difference": max(abs(ours.loss - theirs.loss) for theirs, ours in zip(bare, slime, strict=True)),
        "seconds_padded": median(on_padded),
        "packed_speedup": median(on_padded) / seconds,
        "tokens_per_s": median(step.perf["actor_train_tok_per_s"] for step in slime),
        "tflops": tflops,
        "mfu": tflops * 1e12 / peak.flops,
        "peak_tflops": peak.flops / 1e12,
        "peak_source": peak.source,
        "host_mb_growth": growth,
    }


def own_bytes() -> int:
    """What this process has allocated and written, in memory or swapped out. Not all that is resident: pages of files,
    such as libraries, come and go as the kernel reclaims them."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(status[name].split()[0]) for name in ("RssAnon", "VmSwap"))


def draw(samples: int, middle: int, vocab_size: int) -> dict[str, list[Any]]:
    """Columns of random samples of log-normal lengths, as `slime.rollout.convert.assemble` takes them."""
    rng = np.random.default_rng(0)
    shortest = max(middle * SHORTEST, PROMPT + 1)
    lengths = np.clip(rng.lognormal(np.log(middle), SIGMA, samples), shortest, middle * LONGEST)
    responses = [int(length) - PROMPT for length in lengths]
    rewards = rng.normal(size=samples).tolist()
    return {
        "tokens": [rng.integers(0, vocab_size, PROMPT + n).tolist() for n in responses],
        "response_lengths": responses,
        "loss_masks": [[1] * n for n in responses],
        "rollout_log_probs": [[-float(np.log(vocab_size))] * n for n in responses],
        "rewards": rewards,
        "raw_reward": rewards,
        "truncated": [False] * samples,
        "group_indices": list(range(samples)),
        "sample_indices": list(range(samples)),
    }


def padded_to(length: int, data: Columns) -> dict[str, Any]:
    """The same samples with masked tokens behind, up to this length."""

    def filled(name: str, value: float, lengths: Sequence[int]) -> list[list[Any]]:
        return [[*values, *[value] * (n - len(values))] for values, n in zip(data[name], lengths, strict=True)]

    responses = [length - PROMPT for _ in data["tokens"]]
    return {
        **data,
        "tokens": filled("tokens", 0, [length for _ in data["tokens"]]),
        "response_lengths": responses,
        "loss_masks": filled("loss_masks", 0, responses),
        "rollout_log_probs": filled("rollout_log_probs", 0.0, responses),
    }


class Sides:
    """A trainer and a bare loop on the same ranks, with the same weights. All methods are collective."""

    def __init__(self, config: Config, rank: int, ranks: int, port: int) -> None:
        self.config = config
        self.trainer = Trainer(config, rank, ranks, "127.0.0.1", port)
        self.loop = BareLoop(config, self.trainer.parallel)

    def batch(self, data: Columns) -> Batch:
        parallel = self.trainer.parallel
        return list(assemble(self.config, data, dp_size=parallel.dp_size))[parallel.dp_rank]

    def bare(self, batch: Batch) -> Step:
        """On rows that are packed already."""
        (micro_batches,) = self.trainer.pack(batch)
        parallel = self.trainer.parallel
        start = self._start()
        loss = self.loop.train(micro_batches)
        parallel.device.synchronize()
        seconds = time.perf_counter() - start
        of_ranks = parallel.gather(loss.reshape(1) * parallel.counts_tokens)
        return Step(seconds, float(of_ranks.sum()), {})

    def slime(self, batch: Batch) -> Step:
        start = self._start()
        result = self.trainer.train(0, batch)
        seconds = time.perf_counter() - start
        perf = {name.removeprefix("perf/"): value for name, value in result.rollout.items()}
        return Step(seconds, result.steps[0]["train/loss"], perf)

    def growth(self, batch: Batch, steps: int) -> float:
        """MB that this process takes more after so many steps; a tenth as many before, in which caches fill."""
        for _ in range(steps // 10):
            self.trainer.train(0, batch)
        before = own_bytes()
        for _ in range(steps):
            self.trainer.train(0, batch)
        return (own_bytes() - before) / 1e6

    def close(self) -> None:
        self.trainer.close()

    def _start(self) -> float:
        """The time at which all ranks have come so far."""
        dist.barrier()
        self.trainer.parallel.device.synchronize()
        return time.perf_counter()
