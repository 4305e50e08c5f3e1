"""`python -m slime.convert hf-to-torch-dist|torch-dist-to-hf --input DIR --output DIR`: weights between Hugging Face
and Megatron.

Several processes share the layers. The output is whole or not there.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from slime.config import checkpoint_dir
from slime.config.checkpoint_files import differences
from slime.observe import Console
from slime.platform import ports


class Refused(Exception):
    """A conversion that does not begin; the message says why."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m slime.convert", description=__doc__, allow_abbrev=False)
    parser.add_argument("direction", choices=("hf-to-torch-dist", "torch-dist-to-hf"))
    parser.add_argument("--input", required=True, metavar="DIR", help="the model, or the directory of checkpoints")
    parser.add_argument("--output", required=True, metavar="DIR", help="a new directory")
    parser.add_argument(
        "--hf-config", metavar="DIR", help="config.json and tokenizer of the model; from torch_dist it is needed"
    )
    parser.add_argument("--ckpt-step", type=int, metavar="N", help="the rollout whose checkpoint is taken [the latest]")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), metavar="N", help="processes at most [one a core]"
    )
    args = parser.parse_args()
    console = Console()
    try:
        target, arguments, count = plan(args)
        with console.phase(f"converting {args.input} to {args.output} in {count} process{'es' * (count != 1)}"):
            of_weights = Path(args.input) if args.direction == "hf-to-torch-dist" else None
            run(target, count, arguments, lambda: console.note(progress(Path(args.output), of_weights)))
        if args.direction == "hf-to-torch-dist":
            for remark in recast(args.input):
                print(f"note: {remark}", file=sys.stderr)
    except (Refused, ValueError, OSError) as error:
        print(f"slime.convert: {error}", file=sys.stderr)
        return 1
    finally:
        console.close()
    return 0


def plan(args: argparse.Namespace) -> tuple[str, tuple[str, ...], int]:
    """What each process calls, with what, and how many there are. Raises Refused, or ValueError, for what can't be
    done."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # weights only pass through; inherited by the processes
    from slime.models import family_of, read_hf_config
    from slime.training.conversion import stages

    output = Path(args.output)
    if output.exists() and any(output.iterdir()):
        raise Refused(f"{output} is not empty: name a new directory")
    if args.workers < 1:
        raise Refused(f"--workers {args.workers} leaves nobody to do it")
    if args.direction == "hf-to-torch-dist":
        of_weights, described_by = Path(args.input), args.input
        target, arguments = "hf_to_torch_dist", (args.input, args.output)
        others = args.hf_config
    else:
        if args.hf_config is None:
            raise Refused("--hf-config is missing: a directory with the model's config.json and tokenizer")
        of_weights = checkpoint_dir.find(args.input, args.ckpt_step)
        if of_weights is None:
            raise Refused(f"{args.input} has no checkpoint")
        target, arguments = "torch_dist_to_hf", (str(of_weights), args.hf_config, args.output)
        described_by = others = args.hf_config
    if others and (of_weights / "config.json").is_file():
        if wrong := differences(read_hf_config(of_weights), read_hf_config(others)):
            raise Refused(f"{of_weights} and {others} are of different models:\n  " + "\n  ".join(wrong))
    return target, arguments, stages(family_of(read_hf_config(described_by)), args.workers)


def recast(directory: str) -> Iterator[str]:
    """What is said of weights in another dtype than that which config.json names, which they then have."""
    from slime.models import family_of, read_hf_config
    from slime.models.checkpoint import READABLE, Checkpoint

    family = family_of(read_hf_config(directory))
    checkpoint = Checkpoint(directory, family.fp8_block)
    named = str(family.dtype or "float32").removeprefix("torch.")
    reason = f"as {directory}/config.json {'says' if family.dtype else 'names no dtype'}"
    others: dict[str, list[str]] = {}
    for name in checkpoint.files:
        if not (family.keeps_dtype(name) or family.ignores(name)):
            others.setdefault(checkpoint.dtype(name), []).append(name)
    for dtype in READABLE.values():
        if dtype != named and dtype in others:
            first, *more = sorted(others[dtype])
            tensors = f"{first} and {len(more)} more are" if more else f"{first} is"
            yield f"{tensors} in {dtype} and became {named}, {reason}"


def progress(output: Path, of_weights: Path | None) -> str:
    """How much of it is written, and of how much where it is made of nothing but the weights in these files."""
    done = _size(output.absolute().with_name(f".{output.name}.partial").rglob("*"))
    if not done:
        return "reading"
    total = f" of {_size(of_weights.glob('*.safetensors')) / 1e9:.1f}" if of_weights else ""
    return f"{done / 1e9:.1f}{total} GB written"


def _size(files: Iterable[Path]) -> int:
    size = 0
    for file in files:
        with contextlib.suppress(OSError):  # renamed meanwhile
            size += file.stat().st_size if file.is_file() else 0
    return size


def run(target: str, count: int, arguments: tuple[str, ...], every_second: Callable[[], None]) -> None:
    """Raises Refused when one of the processes fails; the others are ended then, for they would wait for it.

    Ctrl+C reaches all of them; this one alone heeds it, and ends the others.
    """
    context = multiprocessing.get_context("spawn")
    meeting = ports.reserve("127.0.0.1")
    reasons, told = context.Pipe(duplex=False)
    settings = (count, ports.number(meeting), arguments, told)
    processes = [context.Process(target=_rank, args=(target, rank, *settings)) for rank in range(count)]
    resource_tracker.ensure_running()  # here, for when it starts it lets the signal through again
    heeded = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # they inherit it, from their first moment on
    try:
        for process in processes:
            process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, heeded)
        running = list(processes)
        while running:
            # Not for ever: a signal that another thread was woken by is heeded when this one gets on.
            multiprocessing.connection.wait([process.sentinel for process in running], timeout=1)
            every_second()
            for process in [process for process in running if process.exitcode is not None]:
                running.remove(process)
                if process.exitcode:
                    why = reasons.recv() if reasons.poll() else "what it said is above"  # of several the first
                    raise Refused(f"process {processes.index(process)} of {count} failed: {why}")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heeded)
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
        meeting.close()


def _rank(target: str, rank: int, count: int, port: int, arguments: tuple[Any, ...], told: Connection) -> None:
    from slime.training import conversion

    try:
        getattr(conversion, target)(rank, count, port, *arguments)
    except Exception as error:
        told.send(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
