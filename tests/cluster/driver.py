"""A driver for tests: a real session with two actors, each with a child that ignores SIGTERM and a file in /dev/shm.

`python -m tests.cluster.driver RUN_DIR MODE` prints one JSON line when everything is up, then does what MODE says:
`serve` answers "call" lines on standard input until it ends, `wait` waits for an actor that takes an hour, `ask` does
and then asks an actor for a last word, as a job asks its own to end, `fail` has the second actor raise while the first
one waits for it, `gpus` also places ranks and says which GPUs they see, `nodes` places them on a node of four GPUs
each, and waits for the second.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray

from slime.cluster.placement import place, plan
from slime.cluster.session import Session
from slime.cluster.wait import wait
from slime.config.engine_groups import EngineGroup

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)"


@ray.remote(num_cpus=0)
class Holder:
    def __init__(self) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
        self.child.stdout.readline()
        self.shm = Path("/dev/shm") / f"slime-test-{secrets.token_hex(6)}"
        self.shm.write_bytes(bytes(4096))
        with self.shm.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)

    def up(self) -> dict[str, Any]:
        return {
            "pids": [os.getpid(), self.child.pid],
            "shm": str(self.shm),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def call(self) -> str:
        return "pong"

    def wait(self) -> None:
        time.sleep(3600)

    def fail(self) -> None:
        raise ValueError("rank 1 is out of paper")


def main(run_dir: str, mode: str) -> None:
    config: Any = SimpleNamespace(run_dir=run_dir, device="auto", cpu_slots=2)
    with Session(config) as session:
        options = [{}, {}]
        if mode == "gpus":
            placement = place(plan(1, 2, [EngineGroup("regular", 2, 1)], per_node=4, colocate=False), session)
            options = [placement.options(placement.train), placement.options(placement.engines[1])]
        if mode == "nodes":
            placement = place(plan(2, 4, [], per_node=4, colocate=False), session)
            options = [placement.options(placement.train[:1]), placement.options(placement.train[4:5])]
        holders = [Holder.options(name=f"rank {i}", **options[i]).remote() for i in (0, 1)]
        up = wait([holder.up.remote() for holder in holders], "the actors", 60)
        if mode == "serve":  # these get killed; the reaper looks once a second
            time.sleep(1.5)
        try:
            print(json.dumps({"run_id": session.run_id, "resource": session.resource, "actors": up}), flush=True)
            if mode == "serve":
                for _ in sys.stdin:
                    print(wait(holders[0].call.remote(), "an answer", 30), flush=True)
            elif mode in ("wait", "ask"):
                wait(holders[0].wait.remote(), "an hour to pass", 7200)
            elif mode == "nodes":
                wait(holders[1].wait.remote(), "an hour to pass", 7200)
            elif mode == "fail":
                wait([holders[0].wait.remote(), holders[1].fail.remote()], "both ranks", 60)
        finally:
            if mode == "ask":
                print(ray.get(holders[1].call.remote(), timeout=30), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
