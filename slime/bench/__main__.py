"""`python -m slime.bench NAME [options] [--json]`: measures one part of slime beside what else does the same, in the
same run.

Prints a table. With --json prints one line, whose `ratio` is the headline; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from slime.config import ConfigError
from slime.inference.errors import InferenceError
from slime.observe.console import Console
from slime.rollout.types import RolloutError

BENCHES = {name: name for name in ("buffer", "pack", "returns", "rollout", "train")} | {"async": "asynchronous"}
"""Name -> module: `async` is a word of Python's."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m slime.bench", description=__doc__, allow_abbrev=False)
    names = parser.add_subparsers(dest="name", metavar=f"{{{','.join(BENCHES)}}}", required=True)
    benches = {name: importlib.import_module(f"slime.bench.{module}") for name, module in BENCHES.items()}
    for name, bench in benches.items():
        title = " ".join(bench.__doc__.partition("\n\n")[0].removeprefix(f"{name}: ").split())
        command = names.add_parser(name, help=title, description=bench.__doc__, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
        bench.add_arguments(command)
    args, options = parser.parse_known_args()
    try:
        report = benches[args.name].run(args, options, Console(sys.stderr))
    except (ConfigError, InferenceError, RolloutError) as error:
        print(f"slime.bench {args.name}: {error}", file=sys.stderr)
        return 1
    print(report.line() if args.json else report.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
