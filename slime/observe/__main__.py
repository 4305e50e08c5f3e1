"""python -m slime.observe RUN_DIR: what a run came to. `latest` is the newest one in runs/."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slime.observe.metrics import MetricsError
from slime.observe.report import print_summary
from slime.observe.run_dir import LATEST, RunDir, RunDirError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slime.observe", description="Show what a run came to, also one that goes on or was killed."
    )
    parser.add_argument("run_dir", type=Path, help="directory of the run, or `latest`: the newest in runs/")
    path = parser.parse_args().run_dir
    try:
        run = RunDir.open(Path("runs", LATEST) if str(path) == LATEST and not path.exists() else path)
        print_summary(run)
    except (RunDirError, MetricsError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
