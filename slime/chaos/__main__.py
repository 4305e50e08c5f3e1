"""`python -m slime.chaos --kill engine@3 [--kill trainer@4 ...] OPTIONS OF train.py`: a run under faults.

Runs train.py, kills a process of that kind in that rollout, at a moment that the seed decides, and says what was lost:
nothing, or the exit status is 1. An engine and a router are replaced while the run goes on; a run that loses another
process ends, and is started again from its last checkpoint. Kinds: engine, router, trainer, critic, rollout, buffer,
driver. With --random-kills 5 the seed decides the kinds and the rollouts, too.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from slime.chaos.run import ChaosError, Kill, Run
from slime.chaos.victims import KINDS
from slime.config import Config, checkout, from_command_line
from slime.data.history import History, Tally
from slime.data.ledger_file import LedgerError
from slime.observe.terminal import Terminal, seconds


def kill(text: str) -> Kill:
    """ "engine@3"."""
    kind, at, rollout_id = text.partition("@")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(KINDS)}{meant}")
    if not at or not rollout_id.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} names no rollout: write {kind}@3")
    return Kill(kind, int(rollout_id))


def impossible(kill: Kill, config: Config) -> str | None:
    """Why there is nothing to kill."""
    if not KINDS[kill.kind].is_there(config):
        return f"--kill {kill}: this run starts no {kill.kind}"
    if config.num_rollout is not None and kill.rollout_id >= config.num_rollout:
        return f"--kill {kill}: the last of --num-rollout {config.num_rollout} rollouts is {config.num_rollout - 1}"
    return None


def drawn(count: int, rollouts: Sequence[int], config: Config, dice: random.Random) -> list[Kill]:
    """Kills of whatever this run is made of, in as many of these rollouts."""
    kinds = [name for name, kind in KINDS.items() if kind.is_there(config)]
    return [Kill(dice.choice(kinds), rollout_id) for rollout_id in dice.sample(rollouts, count)]


def report(run: Run, tally: Tally, terminal: Terminal) -> list[str]:
    lines = ["", terminal.paint("faults", "bold")]
    for kill in run.kills:
        then = "the run went on"
        if kill.ended_after is not None:
            then = f"the run ended within {seconds(kill.ended_after)}, and was started again"
        if kill.hit != kill.rollout_id:
            then = f"by then in rollout {kill.hit}: {then}"
        lines.append(f"  rollout {kill.rollout_id:<4} {kill.kind:<8} killed after {kill.after:5.2f} s   {then}")
    lines += ["", terminal.paint("samples", "bold")]
    for name, count in asdict(tally).items():
        wrong = name in ("lost", "twice") and count
        lines.append(f"  {name:<8} {terminal.paint(f'{count:>8,}', *(['red'] if wrong else []))}")
    with closing(History(run.directory.ledger_file)) as history:
        lines += [f"           {drop.samples:>8,} dropped: {drop.reason}" for drop in history.drops()]
    return [*lines, "", f"directory  {run.directory.path}"]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slime.chaos", description=__doc__, allow_abbrev=False, add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--kill",
        type=kill,
        action="append",
        default=[],
        metavar="KIND@ROLLOUT",
        help="as often as you like; rollouts count from 0",
    )
    parser.add_argument(
        "--random-kills", type=int, default=0, metavar="N", help="so many more, each in a rollout of its own [0]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments, and of whatever else is random [0]")
    parser.add_argument("--json", action="store_true", help="one line: issued, trained, dropped, lost, twice, and more")
    parser.add_argument("--help", action="store_true", help="this; python train.py --help for the other options")
    args, rest = parser.parse_known_args(words)
    if args.help:
        parser.print_help()
        return 0
    if not args.kill and args.random_kills < 1:
        parser.error("nothing is to be killed: add --kill engine@1, or --random-kills 3")
    if lack := checkout.lacking():
        print(f"slime.chaos: {lack}", file=sys.stderr)
        return 1
    rest = ["--use-fault-tolerance", *rest]
    config = from_command_line(rest)
    if reasons := [reason for kill in args.kill if (reason := impossible(kill, config))]:
        parser.error("\n  ".join(reasons))
    named = {kill.rollout_id for kill in args.kill}
    # Not the last one, which may be over before its kill.
    free = [rollout_id for rollout_id in range((config.num_rollout or 0) - 1) if rollout_id not in named]
    if args.random_kills > len(free):
        lack = args.random_kills - len(free)
        parser.error(
            f"--random-kills {args.random_kills}: in rollouts of their own; give a --num-rollout {lack} larger"
        )
    dice = random.Random(args.seed)
    run = Run(config, rest, [*args.kill, *drawn(args.random_kills, free, config, dice)], dice, quiet=args.json)
    try:
        tally = run.go()
    except (ChaosError, LedgerError) as error:
        print(f"slime.chaos: {error}; see {Path(config.run_dir) / 'logs'}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({**asdict(tally), "starts": run.starts, "kills": [asdict(kill) for kill in run.kills]}))
    else:
        terminal = Terminal(sys.stdout)
        print(terminal.plain("\n".join(report(run, tally, terminal))))
    return 1 if tally.lost or tally.twice else 0


if __name__ == "__main__":
    sys.exit(main())
