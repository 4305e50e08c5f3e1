"""async: how long a run takes whose generation never stops, beside one whose halves take turns, and what both have
learnt.

Both are train.py as users run it, with the same options but for --max-weight-staleness: real engine, router and
trainer, the `sort` task of slime.tiny, the same devices, as many rollouts. The workload is that of agents: an
environment takes its time over each answer, --median seconds or so, and for one sample in --rare 20 times as long; the
time of a sample has nothing to do with its difficulty. Timed are the steps, from the first to the last, without start
and evaluation. The reward is that of held-out prompts by the weights at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from slime.bench import environment
from slime.bench.arguments import count
from slime.config import ConfigError, checkout
from slime.config.errors import Problem
from slime.data.history import History
from slime.data.ledger import State
from slime.observe import RunDir, read_metrics
from slime.observe.console import Console
from slime.rollout.stream import TOO_OLD
from slime.rollout.types import RolloutError
from slime.tiny import Tiny, make_tiny

TARGET, REWARD_TARGET = 0.5, 0.03
TASK = "sort"
SFT_ROLLOUTS = 50  # of 10 optimizer steps
SPREAD = 0.3  # of the ordinary times, as the sigma of a log-normal distribution
SAMPLES = 8  # a prompt
SLOWER = 20  # than the median are the few
TIMEOUT_S = 3600.0
LOG_LINES = 8


@dataclass(frozen=True)
class Side:
    """What came of one run: seconds of all steps, mean reward of held-out answers, samples that were trained on and
    that were dropped as too old, and the ages of the tokens that were trained on, in weight updates."""

    seconds: float
    reward: float
    trained: int
    dropped: int
    age_mean: float
    age_max: int


@dataclass(frozen=True)
class AsyncReport:
    """`ratio` is that of the seconds, asynchronous to synchronous."""

    bench: str
    setup: str
    sync: Side
    asynchronous: Side

    @property
    def ratio(self) -> float:
        return self.asynchronous.seconds / self.sync.seconds

    def table(self) -> str:
        rows = [
            ("", "in turns", "never stops"),
            *(
                (name, *(f"{getattr(side, field):{form}}" for side in (self.sync, self.asynchronous)))
                for name, field, form in (
                    ("seconds", "seconds", ".1f"),
                    ("held-out reward", "reward", ".3f"),
                    ("samples trained on", "trained", "d"),
                    ("samples dropped, too old", "dropped", "d"),
                    ("age of tokens, mean", "age_mean", ".2f"),
                    ("age of tokens, max", "age_max", "d"),
                )
            ),
        ]
        difference = self.asynchronous.reward - self.sync.reward
        reached = self.ratio <= TARGET and abs(difference) <= REWARD_TARGET
        return "\n".join(
            [
                self.setup,
                "",
                *(f"{name:26}{sync:>10}{never:>14}" for name, sync, never in rows),
                "",
                f"async: {self.ratio:.3f} of the time in turns, reward {difference:+.3f}"
                f" (target {TARGET:g} at +-{REWARD_TARGET:g}: {'reached' if reached else 'missed'})",
            ]
        )

    def line(self) -> str:
        headlines = {
            "ratio": self.ratio,
            "target": TARGET,
            "reward_sync": self.sync.reward,
            "reward_async": self.asynchronous.reward,
        }
        return json.dumps({"bench": self.bench, "setup": self.setup} | headlines | {
            "sync": asdict(self.sync), "async": asdict(self.asynchronous)
        })  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rollouts", type=count, default=40, metavar="N", help="of each run [40]")
    parser.add_argument("--prompts", type=count, default=16, metavar="N", help="of a rollout, 8 samples each [16]")
    parser.add_argument("--staleness", type=count, default=4, metavar="N", help="--max-weight-staleness [4]")
    parser.add_argument("--median", type=float, default=0.2, metavar="S", help="seconds of the environment [0.2]")
    parser.add_argument("--rare", type=count, default=64, metavar="N", help="one sample in N takes 20 times it [64]")
    parser.add_argument("--cold-start", metavar="DIR", help="keep the model that both begin with here, or take it")
    parser.add_argument("--logs", metavar="DIR", help="keep the directories of all runs here")


def run(args: argparse.Namespace, options: list[str], console: Console) -> AsyncReport:
    """`options` go to both runs. Raises ConfigError, RolloutError."""
    if lack := checkout.lacking():
        raise RolloutError(lack)
    if args.median <= 0:
        raise ConfigError([Problem("--median", f"must be more than 0, not {args.median:g}", "e.g. --median 0.2")])
    with tempfile.TemporaryDirectory(prefix="slime-bench-") as scratch:
        place = Path(args.logs or scratch)
        place.mkdir(parents=True, exist_ok=True)
        tiny = make_tiny(Path(scratch) / "tiny", TASK)
        add_times(tiny, args.median, args.rare)
        model = Path(args.cold_start or Path(scratch) / "model")
        if not (model / "config.json").exists():
            with console.phase("cold start by supervised fine-tuning"):
                sft = ["--config", "configs/tiny-sft.yaml", "--num-rollout", str(SFT_ROLLOUTS), "--save-hf", str(model)]
                train(place / "sft", [*sft, *files(tiny.model, tiny.sft)])
        common = [*common_options(args, tiny, model), *options]
        with console.phase(f"{args.rollouts} rollouts in turns"):
            sync = measured(train(place / "sync", common))
        bound = ["--max-weight-staleness", str(args.staleness)]
        with console.phase(f"{args.rollouts} rollouts out of generation that never stops"):
            asynchronous = measured(train(place / "async", [*common, *bound]))
    setup = (
        f"{args.rollouts} rollouts of {args.prompts} prompts x {SAMPLES} samples, {args.median:g} s of an environment"
        f" each, one in {args.rare} {SLOWER} times as long; at most {args.staleness} updates old"
    )
    return AsyncReport("async", setup, sync, asynchronous)


def files(model: Path, prompts: Path) -> list[str]:
    return ["--hf-checkpoint", str(model), "--prompt-data", str(prompts)]


def common_options(args: argparse.Namespace, tiny: Tiny, model: Path) -> list[str]:
    return [
        *("--config", "configs/tiny-grpo.yaml", *files(model, tiny.train)),
        *("--no-colocate", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"),
        *("--num-rollout", str(args.rollouts), "--rollout-batch-size", str(args.prompts)),
        *("--n-samples-per-prompt", str(SAMPLES), "--rollout-max-response-len", "8"),
        *("--custom-generate-function-path", f"{environment.__name__}.{environment.generate.__name__}"),
        *("--eval-prompt-data", TASK, str(tiny.heldout), "--n-samples-per-eval-prompt", "4"),
        *("--skip-eval-before-train", "--eval-interval", str(args.rollouts)),
    ]


def add_times(tiny: Tiny, median: float, rare: int) -> None:
    """Gives each prompt the seconds that the environment takes over each of its samples."""
    rng = random.Random(0)
    lines = []
    for line in tiny.train.read_text(encoding="utf-8").splitlines():
        times = [median * (rng.lognormvariate(0, SPREAD) if rng.randrange(rare) else SLOWER) for _ in range(SAMPLES)]
        lines.append(json.dumps(json.loads(line) | {"metadata": {environment.SECONDS: times}}) + "\n")
    tiny.train.write_text("".join(lines), encoding="utf-8")


def train(place: Path, options: list[str]) -> Path:
    """Runs train.py to its end. Returns the directory of the run; raises RolloutError with what it said if it fails."""
    output = place.with_suffix(".log")
    with output.open("w") as file:
        done = subprocess.run(
            [sys.executable, "train.py", *options, "--run-dir", str(place)],
            cwd=checkout.CHECKOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    if done.returncode:
        last = output.read_text().splitlines()[-LOG_LINES:]
        raise RolloutError(f"train.py {' '.join(options)} ended with {done.returncode}:\n  " + "\n  ".join(last))
    return place


def measured(run_dir: Path) -> Side:
    rows = read_metrics(run_dir)

    def column(name: str) -> list[float]:
        return [row[name] for row in rows if name in row]

    with closing(History(RunDir.open(run_dir).ledger_file)) as history:
        counts = history.counts()
        dropped = sum(drop.samples for drop in history.drops() if drop.reason.startswith(TOO_OLD))
    ages = column("rollout/staleness/mean")
    return Side(
        seconds=sum(column("perf/step_time")),
        reward=column(f"eval/{TASK}")[-1],
        trained=counts[State.TRAINED].samples,
        dropped=dropped,
        age_mean=sum(ages) / len(ages) if ages else 0.0,
        age_max=int(max(column("rollout/staleness/max"), default=0)),
    )
