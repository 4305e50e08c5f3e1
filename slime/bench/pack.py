"""pack: how evenly samples of long-tailed lengths are dealt to ranks and packed into micro-batches, and how fast.

Beside first fit (samples to ranks in turn, each into the first micro-batch with room, in the order they came) and
beside what no plan can beat. No devices, no model: lengths in, integers out.

- efficiency: share of the room of all micro-batches (their number x ranks x --max-tokens) that holds tokens. All ranks
  run as many micro-batches as the one that needs most.
- imbalance: by how much the rank with the most tokens exceeds the mean; a step ends when that rank does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean

import numpy as np

from slime.bench.arguments import count
from slime.config import ConfigError
from slime.config.errors import Problem
from slime.observe.console import Console
from slime.schedule import plan

LENGTHS = (128, 32768)  # tokens, the shortest and the longest
MEDIAN, SIGMA = 2048, 1.0  # of the log-normal distribution that is cut at LENGTHS
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
SCHEDULED = 100_000  # samples whose planning is timed
TARGET_S = 1.0


@dataclass(frozen=True)
class Row:
    """Efficiency and imbalance at a number of ranks; of the plan, of first fit, and the best there can be."""

    ranks: int
    samples: int
    efficiency: float
    efficiency_first_fit: float
    efficiency_bound: float
    imbalance: float
    imbalance_first_fit: float
    imbalance_bound: float
    seconds_100k: float


@dataclass(frozen=True)
class PackReport:
    """`efficiency`, `imbalance` and `seconds_100k` are the worst of all rows; `ratio` is that of efficiency to its
    bound, the worst again."""

    bench: str
    setup: str
    rows: list[Row]
    efficiency: float
    imbalance: float
    seconds_100k: float
    ratio: float

    def table(self) -> str:
        lines = [
            self.setup,
            "",
            "                 ───── efficiency ─────   ─────── imbalance ───────   100k samples",
            " ranks  samples   slime    fit   bound      slime      fit    bound   planned in s",
        ]
        for r in self.rows:
            lines.append(
                f"{r.ranks:6}  {r.samples:7}  {r.efficiency:6.1%} {r.efficiency_first_fit:6.1%} "
                f" {r.efficiency_bound:6.1%}"
                f"  {r.imbalance:9.1e} {r.imbalance_first_fit:8.1%} {r.imbalance_bound:8.1%}   {r.seconds_100k:12.2f}"
            )
        verdict = "reached" if self.seconds_100k <= TARGET_S else "missed"
        return "\n".join(
            [
                *lines,
                "",
                f"pack: efficiency at least {self.efficiency:.1%}, {self.ratio:.3f} of the best possible;"
                " 100,000 samples"
                f" planned in {self.seconds_100k:.2f} s at most (target {TARGET_S:g} s: {verdict})",
            ]
        )

    def line(self) -> str:
        return json.dumps(asdict(self))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=count, nargs="+", default=RANKS, metavar="N", help="data-parallel ranks")
    parser.add_argument("--samples-per-rank", type=count, default=64, metavar="N", help="samples a rank and step [64]")
    parser.add_argument(
        "--max-tokens", type=count, default=LENGTHS[1], metavar="N", help=f"tokens a micro-batch [{LENGTHS[1]}]"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the lengths [0]")


def run(args: argparse.Namespace, options: list[str], console: Console) -> PackReport:
    """Raises ConfigError for options of the configuration: nothing here reads any."""
    if options:
        raise ConfigError([Problem(options[0], "is no option of this bench, which reads no configuration")])
    rng = np.random.default_rng(args.seed)
    rows = []
    for ranks in args.ranks:
        with console.phase(f"planning for {ranks} ranks"):
            rows.append(measure(rng, ranks, ranks * args.samples_per_rank, args.max_tokens))
    return PackReport(
        "pack",
        f"lengths log-normal around {MEDIAN}, cut at {LENGTHS[0]} and {LENGTHS[1]}; micro-batches of"
        f" {args.max_tokens} tokens",
        rows,
        efficiency=min(row.efficiency for row in rows),
        imbalance=max(row.imbalance for row in rows),
        seconds_100k=max(row.seconds_100k for row in rows),
        ratio=min(row.efficiency / row.efficiency_bound for row in rows),
    )


def measure(rng: np.random.Generator, ranks: int, samples: int, max_tokens: int) -> Row:
    lengths = draw(rng, samples)
    planned = [rank.steps[0] for rank in plan(lengths, dp_size=ranks, max_tokens=max_tokens, balance=True)]
    fitted = [first_fit(range(rank, samples, ranks), lengths, max_tokens) for rank in range(ranks)]
    total = sum(lengths)
    fewest = -(-total // (ranks * max_tokens))
    return Row(
        ranks,
        samples,
        *(efficiency(micro_batches, total, max_tokens) for micro_batches in (planned, fitted)),
        total / (ranks * fewest * max_tokens),
        *(imbalance(micro_batches, lengths) for micro_batches in (planned, fitted)),
        max(0.0, max(lengths) * ranks / total - 1),
        seconds(draw(rng, SCHEDULED), ranks, max_tokens),
    )


def draw(rng: np.random.Generator, samples: int) -> list[int]:
    return np.clip(np.exp(rng.normal(np.log(MEDIAN), SIGMA, samples)), *LENGTHS).astype(int).tolist()


def efficiency(micro_batches: Sequence[Sequence[object]], total: int, max_tokens: int) -> float:
    return total / (len(micro_batches) * max(map(len, micro_batches)) * max_tokens)


def imbalance(micro_batches: Sequence[Sequence[Sequence[int]]], lengths: Sequence[int]) -> float:
    tokens = [sum(lengths[sample] for micro_batch in of_rank for sample in micro_batch) for of_rank in micro_batches]
    return max(tokens) / mean(tokens) - 1


def first_fit(samples: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    micro_batches: list[list[int]] = []
    rooms: list[int] = []
    for sample in samples:
        index = next((i for i, room in enumerate(rooms) if lengths[sample] <= room), len(rooms))
        if index == len(rooms):
            micro_batches.append([])
            rooms.append(max_tokens)
        micro_batches[index].append(sample)
        rooms[index] -= lengths[sample]
    return micro_batches


def seconds(lengths: list[int], ranks: int, max_tokens: int) -> float:
    """The best of three: what else the machine does is none of the plan's."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        plan(lengths, dp_size=ranks, max_tokens=max_tokens, balance=True)
        times.append(time.perf_counter() - start)
    return min(times)
