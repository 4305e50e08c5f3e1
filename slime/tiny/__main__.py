"""`python -m slime.tiny --task col|sort|tool --output DIR`: makes the files of a tiny experiment and says what they
are."""

from __future__ import annotations

import argparse
import sys

from slime.tiny.files import make_tiny
from slime.tiny.tasks import TASKS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m slime.tiny", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--task",
        choices=TASKS,
        default="col",
        help="col: 47+85= by thinking; sort: sort 52941, quicker; tool: 34*62= by a calculator",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="a new directory")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of all files [0]")
    parser.add_argument("--num-train", type=int, default=4096, help="prompts to train on [4096]")
    parser.add_argument("--num-heldout", type=int, default=400, help="prompts for evaluation [400]")
    parser.add_argument("--num-demos", type=int, default=16384, help="demonstrations for the cold start [16384]")
    parser.add_argument(
        "--moe", action="store_true", help="a mixture of 8 experts, 2 a token, in place of the dense model"
    )
    parser.add_argument(
        "--width", type=int, default=1, help="multiplies the model's sizes; 8 on GPUs, for their kernels [1]"
    )
    args = parser.parse_args()
    for option in ("num_train", "num_heldout", "num_demos", "width"):
        if getattr(args, option) < 1:
            parser.error(f"--{option.replace('_', '-')} must be at least 1, not {getattr(args, option)}")
    there_are = TASKS[args.task].prompts
    for option, count in (("--num-train", args.num_train), ("--num-heldout", args.num_heldout)):
        if count > there_are:
            parser.error(f"{option} {count} is more than the {there_are} different prompts that --task {args.task} has")
    try:
        tiny = make_tiny(
            args.output,
            args.task,
            seed=args.seed,
            num_train=args.num_train,
            num_heldout=args.num_heldout,
            num_demos=args.num_demos,
            moe=args.moe,
            width=args.width,
        )
    except OSError as error:
        why = error
        if error.errno is not None:  # of the system, in whose message is a name that we chose
            in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
            why = f"cannot make {args.output}: {'a file is in the way' if in_the_way else error.strerror}"
        print(f"slime.tiny: {why}", file=sys.stderr)
        return 1
    print(f"{tiny.model}: a Qwen3{' MoE' if args.moe else ''} checkpoint with random weights")
    print(f"{tiny.reward_model}: a Qwen3 reward model with random weights")
    print(f"{tiny.train}: {args.num_train} prompts with labels")
    print(f"{tiny.heldout}: {args.num_heldout} held-out prompts with labels")
    print(f"{tiny.sft}: {args.num_demos} demonstrations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
