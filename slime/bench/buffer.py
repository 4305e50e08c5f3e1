"""buffer: how fast finished samples reach the training ranks, through batches in the object store, and what the ledger
costs.

The rollout actor, the data buffer, its ledger and the references are those of a run; a rollout function takes the place
of the engines, and readers that of the training ranks. Timed is from when the function has returned the samples until
every reader has its batch: rewards, division among ranks, arrays, ledger, object store, metrics. Beside it, bare: Ray's
object store alone, with arrays of the same size that are there already. Bytes are those that training reads: 4 a token,
a log-probability, a mask entry.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import ray

from slime.bench.arguments import count
from slime.cluster.buffer import Buffer
from slime.cluster.rollouts import Rollouts
from slime.cluster.session import Session
from slime.cluster.wait import wait
from slime.config import Config, ConfigError, architecture, load
from slime.config.errors import Problem
from slime.data.numbers import LOG_PROB, MASK, TOKEN, Numbers
from slime.data.outcome import outcomes
from slime.data.sample import PACKED, Sample, Status
from slime.observe.console import Console
from slime.rollout.types import RolloutFnTrainOutput
from slime.tiny import write_checkpoint

TARGET_GB_PER_S = 1.0
LEDGER_SHARE = 0.02  # of a step, that the ledger may take at most
GROUP = 8  # samples a prompt
PROMPT = 512  # tokens of a sample that are its prompt, where it has so many
BYTES = 4
TIMEOUT_S = 600.0
WARM_UP = 3  # rounds: memory of the object store is slow when it is touched for the first time
FINISHED_AT, CPU_BEFORE = "bench/finished_at", "bench/cpu_before"


@dataclass(frozen=True)
class BufferReport:
    """Medians of the rounds. `ratio` is that of our GB/s to the bare object store's; `gb_per_cpu_s`: over what the
    rollout actor computes meanwhile, which is the same on a busy machine; `ledger_ms_per_step`: how long all
    calls of one rollout for the ledger hold their callers up; `buffer_cpu_ms_per_step`: what the buffer's process
    computes in that time, to hand the samples out and to write down what becomes of them; `driver_mb_growth`: over
    these rounds."""

    bench: str
    setup: str
    gb_per_s: float
    samples_per_s: float
    seconds: float
    gb_per_cpu_s: float
    bare_gb_per_s: float
    ratio: float
    driver_mb_growth: float
    ledger_ms_per_step: float
    ledger_us_per_sample: float
    buffer_cpu_ms_per_step: float

    def table(self) -> str:
        verdict = "reached" if self.gb_per_s >= TARGET_GB_PER_S else "missed"
        return "\n".join(
            [
                self.setup,
                "",
                f"hand-over             {self.gb_per_s:8.2f} GB/s    {self.samples_per_s:,.0f} samples/s,"
                f" {self.seconds:.3f} s in all; {self.gb_per_cpu_s:.2f} GB a second of CPU",
                f"object store alone    {self.bare_gb_per_s:8.2f} GB/s    ratio {self.ratio:.3f}",
                f"memory of the driver  {self.driver_mb_growth:+8.1f} MB",
                f"ledger                {self.ledger_ms_per_step:8.1f} ms      of callers' time a step,"
                f" {self.ledger_us_per_sample:.1f} us a sample: {LEDGER_SHARE:.0%} of a step of"
                f" {self.ledger_ms_per_step / LEDGER_SHARE / 1e3:.1f} s",
                f"buffer's process      {self.buffer_cpu_ms_per_step:8.1f} ms      of CPU a step",
                "",
                f"buffer: {self.gb_per_s:.2f} GB/s (target {TARGET_GB_PER_S:g} GB/s: {verdict})",
            ]
        )

    def line(self) -> str:
        return json.dumps(asdict(self))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=count, default=4096, metavar="N", help=f"a multiple of {GROUP} [4096]")
    parser.add_argument(
        "--tokens", type=count, default=8192, metavar="N", help="of a sample, prompt and response [8192]"
    )
    parser.add_argument("--ranks", type=count, default=4, metavar="N", help="data-parallel ranks [4]")
    parser.add_argument(
        "--rounds", type=count, default=5, metavar="N", help=f"measured ones, after {WARM_UP} that are not [5]"
    )
    parser.add_argument(
        "--lists", action="store_true", help="tokens in Python lists, as users' own generate functions make them"
    )


def run(args: argparse.Namespace, options: list[str], console: Console) -> BufferReport:
    """Raises ConfigError for options of the configuration: nothing here reads any."""
    problems = [Problem(options[0], "is no option of this bench, which reads no configuration")] if options else []
    if args.samples % GROUP:
        problems.append(Problem("--samples", f"{args.samples} is not a multiple of {GROUP}"))
    if problems:
        raise ConfigError(problems)
    with tempfile.TemporaryDirectory(prefix="slime-bench-") as directory:
        config = configuration(args, Path(directory))
        with Session(config) as session:
            with console.phase("starting"):
                ends = Ends(config, session, args)
            with console.phase(f"handing over {args.rounds} rounds of {args.samples} samples"):
                return ends.measure(args)


def configuration(args: argparse.Namespace, directory: Path) -> Config:
    return load(
        [
            *("--hf-checkpoint", str(write_checkpoint(directory / "model")), "--run-dir", str(directory / "run")),
            *("--device", "cpu", "--debug-train-only"),
            *("--data-source-path", f"{__name__}.Prompts", "--rollout-function-path", f"{__name__}.finished_samples"),
            *("--rollout-batch-size", str(args.samples // GROUP), "--n-samples-per-prompt", str(GROUP)),
            *("--num-rollout", "1000000", "--actor-num-gpus-per-node", str(args.ranks), "--cpu-slots", str(args.ranks)),
            *("--use-dynamic-batch-size", "--max-tokens-per-gpu", str(max(32768, args.tokens)), "--balance-data"),
            *("--train-env-vars", json.dumps({"tokens": args.tokens, "lists": args.lists})),
        ]
    )


class Prompts:
    """The data source: groups with numbers, and prompts of one token, for the rollout function writes over them."""

    def __init__(self, config: Config) -> None:
        self.next_group = 0

    def get_samples(self, n: int) -> list[list[Sample]]:
        first, self.next_group = self.next_group, self.next_group + n
        return [
            [Sample(group_index=g, index=g * GROUP + k, tokens=[1]) for k in range(GROUP)]
            for g in range(first, first + n)
        ]

    def add_samples(self, groups: list[list[Sample]]) -> None: ...

    def save(self, id: int) -> None: ...

    def load(self, id: int) -> None: ...

    def __len__(self) -> int:
        return 1


def finished_samples(
    args: Config, rollout_id: int, data_source: Buffer, evaluation: bool = False
) -> RolloutFnTrainOutput:
    """--rollout-function-path: tells the ledger what the default one tells it, and has everything finished at once."""
    groups = data_source.get_samples(args.rollout_batch_size)
    rng = np.random.default_rng(rollout_id)
    tokens, vocab_size = int(args.train_env_vars["tokens"]), architecture.read(args.hf_checkpoint)["vocab_size"]
    response = tokens - min(PROMPT, tokens // 2)
    data_source.generating([sample.index for group in groups for sample in group], rollout_id)
    for group in groups:
        for sample in group:
            sample.tokens = Numbers(TOKEN, rng.integers(0, vocab_size, tokens, np.int32).tobytes())
            sample.rollout_log_probs = Numbers(LOG_PROB, rng.standard_normal(response).tobytes())
            sample.loss_mask = Numbers(MASK, np.ones(response, np.float32).tobytes())
            sample.response_length = response
            if args.train_env_vars["lists"]:
                for name in PACKED:
                    setattr(sample, name, getattr(sample, name) and getattr(sample, name).tolist())
            sample.reward = float(sample.index % 2)
            sample.status = Status.COMPLETED
        data_source.finished(outcomes((sample, sample.reward) for sample in group))
    len(data_source)  # returns when all of this has been noted, as it would have been while samples were generated
    return RolloutFnTrainOutput(groups, {FINISHED_AT: time.perf_counter(), CPU_BEFORE: time.process_time()})


class Reader:
    """A data-parallel rank that only takes what is its own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def read(self, batches: list[ray.ObjectRef]) -> tuple[float, int, int]:
        """When it was there, and how many samples and bytes it is."""
        batch = ray.get(batches[self.rank])
        at = time.perf_counter()
        arrays = (batch.tokens_T, batch.rollout_log_probs_R, batch.loss_mask_R)
        return at, len(batch), sum(array.nbytes for array in arrays)

    def read_bare(self, arrays: list[ray.ObjectRef]) -> float:
        ray.get(arrays[self.rank])
        return time.perf_counter()


class Putter:
    """What the rollout actor's last act is, alone."""

    def __init__(self, num_bytes: int, ranks: int) -> None:
        self.arrays = [np.ones(num_bytes // ranks // BYTES, np.float32) for _ in range(ranks)]

    def put(self) -> tuple[float, list[ray.ObjectRef]]:
        start = time.perf_counter()
        return start, [ray.put(array) for array in self.arrays]


def cpu_of(actor: ray.actor.ActorHandle) -> float:
    """Seconds that an actor's process has computed for so far."""
    return wait(actor.__ray_call__.remote(lambda _: time.process_time()), "an actor to tell its time", TIMEOUT_S)


class Ends:
    """Both ends of the hand-over, and the driver between them, which is this process."""

    def __init__(self, config: Config, session: Session, args: argparse.Namespace) -> None:
        self.buffer = Buffer.start(config)
        wait(self.buffer.open(config), "the data buffer to start", TIMEOUT_S)
        self.rollouts = Rollouts(config, (), self.buffer, dp_size=args.ranks, logs=session.logs, token=None)
        wait(self.rollouts.connect([], TIMEOUT_S), "the rollout actor to start", TIMEOUT_S)
        self.readers = [ray.remote(Reader).options(num_cpus=0).remote(rank) for rank in range(args.ranks)]

    def measure(self, args: argparse.Namespace) -> BufferReport:
        driver = psutil.Process()
        seconds, cpu_seconds, ledger, computed = [], [], [], []
        for rollout_id in range(WARM_UP + args.rounds):
            if rollout_id == WARM_UP:
                before = driver.memory_info().rss
            before_round = cpu_of(self.buffer.actor)
            taken, taken_of_cpu, num_bytes, in_ledger = self.round(rollout_id, args)
            seconds.append(taken)
            cpu_seconds.append(taken_of_cpu)
            ledger.append(in_ledger)
            computed.append(cpu_of(self.buffer.actor) - before_round)
        growth = (driver.memory_info().rss - before) / 1e6
        a_step = median(ledger[WARM_UP:])
        bare = self.bare(num_bytes, args)
        taken = median(seconds[WARM_UP:])
        return BufferReport(
            "buffer",
            f"{args.samples} samples of {args.tokens} tokens in {'lists' if args.lists else 'arrays'}, to {args.ranks}"
            f" ranks: {num_bytes / 1e6:.0f} MB",
            gb_per_s=num_bytes / taken / 1e9,
            samples_per_s=args.samples / taken,
            seconds=taken,
            gb_per_cpu_s=num_bytes / median(cpu_seconds[WARM_UP:]) / 1e9,
            bare_gb_per_s=num_bytes / bare / 1e9,
            ratio=bare / taken,
            driver_mb_growth=growth,
            ledger_ms_per_step=a_step * 1e3,
            ledger_us_per_sample=a_step / args.samples * 1e6,
            buffer_cpu_ms_per_step=median(computed[WARM_UP:]) * 1e3,
        )

    def round(self, rollout_id: int, args: argparse.Namespace) -> tuple[float, float, int, float]:
        """Seconds, those of the rollout actor's CPU, bytes, and seconds that the ledger took of its callers."""
        batches, metrics = wait(self.rollouts.generate(rollout_id), "a rollout", TIMEOUT_S)
        cpu = cpu_of(self.rollouts.actor) - metrics[CPU_BEFORE]
        read = wait([reader.read.remote(batches) for reader in self.readers], "the readers", TIMEOUT_S)
        num_samples = sum(samples for _, samples, _ in read)
        if num_samples != args.samples:
            raise RuntimeError(f"{num_samples} of {args.samples} samples arrived")
        start = time.perf_counter()
        wait(self.buffer.trained(rollout_id), "the ledger", TIMEOUT_S)
        in_ledger = metrics["perf/ledger_time"] + time.perf_counter() - start
        seconds = max(at for at, _, _ in read) - metrics[FINISHED_AT]
        return seconds, cpu, sum(size for _, _, size in read), in_ledger

    def bare(self, num_bytes: int, args: argparse.Namespace) -> float:
        """Seconds of the object store alone."""
        putter = ray.remote(Putter).options(num_cpus=0).remote(num_bytes, args.ranks)
        seconds = []
        for _ in range(WARM_UP + args.rounds):
            start, arrays = wait(putter.put.remote(), "the object store", TIMEOUT_S)
            read = wait([reader.read_bare.remote(arrays) for reader in self.readers], "the readers", TIMEOUT_S)
            seconds.append(max(read) - start)
        return median(seconds[WARM_UP:])
