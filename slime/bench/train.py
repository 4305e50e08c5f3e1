"""train: an optimizer step of the trainer beside a bare Megatron-core loop, and packed rows beside padded ones.

Both sides train the same model on the same packed rows with the same loss and the same optimizer, in turns: bare,
slime, bare, slime ... Samples have long-tailed lengths. slime's time is that of all its `train` does: it packs the rows
from a rollout's arrays, and it measures and reports what a run shows. `loss_difference` says that both computed the
same. Then slime trains on the same samples padded to the longest, and at last for many small steps in which the
process should not grow. Unknown options go to the configuration.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch.multiprocessing

from slime.bench.arguments import count
from slime.config import Config, load
from slime.observe.console import Console
from slime.platform import ports
from slime.tiny import write_checkpoint

TARGET, TARGET_PACKED = 1.05, 2.0


@dataclass(frozen=True)
class TrainReport:
    """`ratio` is the median over rounds of seconds of a step, slime's over the bare loop's."""

    bench: str
    setup: str
    seconds_bare: float
    seconds: float
    ratio: float
    loss_difference: float
    seconds_padded: float
    packed_speedup: float
    tokens_per_s: float
    tflops: float
    mfu: float
    peak_tflops: float
    peak_source: str
    host_mb_growth: float
    memory_steps: int

    def table(self) -> str:
        verdict = "reached" if self.ratio <= TARGET else "missed"
        packed = "reached" if self.packed_speedup >= TARGET_PACKED else "missed"
        speedup = f"packing is {self.packed_speedup:.2f} times as fast (target {TARGET_PACKED:g}: {packed})"
        return "\n".join(
            [
                self.setup,
                "",
                f"a step, bare Megatron-core  {self.seconds_bare:8.3f} s",
                f"a step, slime               {self.seconds:8.3f} s   losses differ by"
                f" {self.loss_difference:.1e} at most",
                f"the same samples padded     {self.seconds_padded:8.3f} s   {speedup}",
                f"tokens a second             {self.tokens_per_s:8.0f}",
                f"TFLOP/s of a device         {self.tflops:8.3f}     "
                f"{self.mfu:.1%} of {self.peak_tflops:.3f} ({self.peak_source})",
                f"host memory, {self.memory_steps:4} steps     {self.host_mb_growth:+8.1f} MB",
                "",
                f"train: {self.ratio:.3f} of the bare loop's time (target {TARGET:g}: {verdict})",
            ]
        )

    def line(self) -> str:
        return json.dumps(asdict(self))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hf-checkpoint", metavar="DIR", help="model to train [a tiny Qwen3 with random weights]")
    parser.add_argument("--ranks", type=count, default=1, metavar="N", help="training processes [1]")
    parser.add_argument("--samples", type=count, default=64, metavar="N", help="samples of a step [64]")
    parser.add_argument("--median", type=count, default=64, metavar="N", help="median length of a sample [64]")
    parser.add_argument("--max-tokens", type=count, default=2048, metavar="N", help="tokens of a row [2048]")
    parser.add_argument("--rounds", type=count, default=12, metavar="N", help="steps of each side [12]")
    parser.add_argument("--padded-rounds", type=count, default=3, metavar="N", help="steps on padded samples [3]")
    parser.add_argument("--memory-steps", type=count, default=200, metavar="N", help="small steps [200]")


def run(args: argparse.Namespace, options: list[str], console: Console) -> TrainReport:
    """`options` are those of the configuration. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix="slime-bench-") as scratch:
        model = Path(args.hf_checkpoint or write_checkpoint(Path(scratch) / "model"))
        config = make_config(args, model, options)
        results = get_context("spawn").SimpleQueue()
        with console.phase(f"measuring {args.rounds} rounds of each on {args.ranks} training processes"):
            with ports.reserve("127.0.0.1") as meeting:
                settings = (args, config, ports.number(meeting), results)
                torch.multiprocessing.spawn(rank, settings, nprocs=args.ranks)
            measured = results.get()
    setup = (
        f"{args.samples} samples, {measured.pop('tokens')} tokens, longest {measured.pop('longest')}, rows of at most"
        f" {args.max_tokens}; {args.ranks} x {measured.pop('device')}, {'bfloat16' if config.bf16 else 'float32'},"
        f" {args.hf_checkpoint or 'tiny Qwen3'}"
    )
    return TrainReport("train", setup, **measured, memory_steps=args.memory_steps)


def make_config(args: argparse.Namespace, model: Path, options: list[str]) -> Config:
    return load(
        [
            *("--hf-checkpoint", str(model), "--actor-num-gpus-per-node", str(args.ranks), "--debug-train-only"),
            *("--rollout-function-path", "none.generates"),
            *("--rollout-batch-size", str(args.samples), "--n-samples-per-prompt", "1", "--num-rollout", "1000000"),
            *("--use-dynamic-batch-size", "--max-tokens-per-gpu", str(args.max_tokens), "--balance-data"),
            *("--use-rollout-logprobs", "--no-bf16", "--lr", "1e-5"),
            *options,
        ]
    )


def rank(index: int, args: argparse.Namespace, config: Config, port: int, results: SimpleQueue) -> None:
    """One training process. Rank 0 puts what it measured into `results`."""
    import slime.training  # noqa: F401 - first: where there is no GPU, it changes torch so that Megatron runs
    from slime.bench.train_sides import measure

    torch.set_num_threads(1)
    measured = measure(index, args, config, port)
    if index == 0:
        results.put(measured)
