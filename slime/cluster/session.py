"""Session: one run's life on Ray, from the first process to the last file.

    with Session(config) as session:
        ...

Invariants:
- Inside the block Ray is connected: to the cluster that RAY_ADDRESS names (a submitted job has it), else to one of our
  own that is started here, on loopback, with a token of its own, in a directory that only this user can read.
- After the block, however it was left, nothing that the run started lives: the reaper (see reaper.py) ends it, also
  when this process is killed. A cluster that was joined stays as it was, only this run's actors and their children end.
- Ctrl+C, SIGTERM and SIGHUP leave the block as KeyboardInterrupt, the latter two then as SystemExit(128 + number).
  Once it is being left, no signal interrupts.
- This process's environment and signal handlers are put back as they were.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray._private import services
from ray._raylet import GcsClient
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slime.cluster import reaper
from slime.cluster.environment import environment
from slime.cluster.interrupt import Interrupt
from slime.cluster.local_ray import LocalRay, RayStartError
from slime.cluster.wait import wait
from slime.config import machine

if TYPE_CHECKING:
    from slime.config import Config

_JOIN_S = 60.0
_ANSWER_S = 30.0
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the placement says who sees which GPU, not Ray
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_worker_prestart": "0",  # a worker for each actor is enough; the driver need not wait for others
    "RAY_prestart_worker_first_driver": "0",
    "SPT_NOENV": "1",  # process titles must not overwrite the environment, by which the reaper knows its own
}


class Session:
    """The connection of a run to Ray, and the guarantee that the run ends whole. Use as a context manager, once.

    Attributes: `run_id` (unique, in the environment of every process of the run), `logs` (the run's directory of logs),
    `resource` ("GPU" or "CPU": what the cluster calls a device), `joined` (whether the cluster is somebody else's).
    """

    def __init__(self, config: Config):
        self.run_id = secrets.token_hex(6)
        self.logs = Path(config.run_dir).resolve() / "logs"
        self.joined = os.environ.get("RAY_ADDRESS", "local") not in ("", "local")
        self.resource = "CPU"
        self._cpu_slots = config.cpu_slots
        self._wants_gpus, self._needs_gpus = config.device != "cpu", config.device == "cuda"
        self._guard: reaper.Guard | None = None
        self._interrupt = Interrupt()
        self._undo = ExitStack()

    def __enter__(self) -> Session:
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            for line in reaper.clear_dead_runs():
                print(f"slime: {line}", file=sys.stderr)
        except OSError as error:
            raise RayStartError(f"cannot keep the records of runs: {error}") from error
        try:
            self._interrupt.catch()
            self._undo.callback(self._interrupt.release)
            hidden = {} if self._wants_gpus else {"CUDA_VISIBLE_DEVICES": ""}
            self._undo.enter_context(environment({**_ENVIRONMENT, **hidden, reaper.RUN_ID: self.run_id}))
            self._guard = guard = reaper.Guard(self.run_id, self.logs / "reaper.log")
            self._undo.callback(guard.close)
            if self.joined:
                self._join()
            else:
                self._start(guard.directory)
            self._interrupt.catch()  # again: ray.init sets handlers too
            gpus = ray.cluster_resources().get("GPU", 0)
            if self._needs_gpus and not gpus:
                raise RayStartError("--device cuda, but the cluster has no GPU: give --device cpu, or join another")
        except OSError as error:
            self.__exit__()
            raise RayStartError(f"cannot make what a run needs: {error}") from error
        except BaseException:
            self.__exit__()
            raise
        self.resource = "GPU" if gpus and self._wants_gpus else "CPU"
        return self

    def __exit__(self, *exception: object) -> None:
        self._interrupt.end()
        if self._guard is not None:
            self._guard.look()
        self._undo.close()
        if self._interrupt.number not in (None, signal.SIGINT):
            name = signal.Signals(self._interrupt.number).name
            print(f"slime: ended by {name}; whatever this run had started has ended", file=sys.stderr)
            raise SystemExit(128 + self._interrupt.number)

    def _start(self, directory: Path) -> None:
        temporary = directory / "tmp"  # what those that are killed leave in it goes with the directory
        temporary.mkdir()
        compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
        self._undo.enter_context(environment({"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": compiled}))
        gpus = self._wants_gpus and machine.num_gpus() > 0  # Ray itself takes CUDA_VISIBLE_DEVICES=-1 for one
        own = LocalRay(directory, self.logs, namespace=self.run_id, cpu_slots=self._cpu_slots, gpus=gpus)
        self._undo.callback(own.stop)

    def _join(self) -> None:
        """Connects to the cluster that is there; each of its machines gets a reaper for what this run starts on it."""
        variables = {name: os.environ[name] for name in (reaper.RUN_ID, "SPT_NOENV")}
        self._undo.callback(ray.shutdown)
        options = {"namespace": self.run_id, "log_to_driver": False, "logging_level": "error"}
        try:
            _knock(os.environ["RAY_ADDRESS"])
            ray.init(runtime_env={"env_vars": variables}, **options)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            address = os.environ["RAY_ADDRESS"]
            raise RayStartError(f"cannot join the Ray cluster at RAY_ADDRESS={address}: {error}") from error
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        guards = [
            _NodeGuard.options(
                name=f"guard of node {node[:8]}",
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(self.run_id)
            for node in nodes
        ]
        wait([guard.ready.remote() for guard in guards], f"a reaper on each of {len(nodes)} machines", _JOIN_S)
        self._undo.callback(_close_guards, guards)


@ray.remote(num_cpus=0)
class _NodeGuard:
    """Holds the reaper of one machine of a cluster that was joined: dies with the run's job, and the reaper with it."""

    def __init__(self, run_id: str):
        logs = Path(ray._private.worker._global_node.get_logs_dir_path())
        self._guard = reaper.Guard(run_id, logs / f"slime-reaper-{run_id}.log")

    def ready(self) -> None:
        pass

    def close(self) -> None:
        self._guard.close()  # ends this process as well


def _knock(address: str) -> None:
    """Raises OSError if no Ray answers at `host:port` or `auto`: Ray itself would try for minutes, deaf to Ctrl+C."""
    if address == "auto":
        found = services.canonicalize_bootstrap_address(address)
        if found is None:
            raise ConnectionError("no cluster runs on this machine")
        address = found
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "//" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"{address}: {error}") from error
    asking = threading.Thread(target=_ask, args=(address,), name="asks Ray's head", daemon=True)
    asking.start()
    deadline = time.monotonic() + _ANSWER_S
    while asking.is_alive():  # and in between, signals are heard
        if time.monotonic() > deadline:
            raise TimeoutError(f"{address} takes connections, but has not answered as Ray does for {_ANSWER_S:g} s")
        asking.join(0.2)


def _ask(address: str) -> None:
    with suppress(Exception):  # whatever is wrong with an answer, `ray.init` says it better
        GcsClient(address=address)


def _close_guards(guards: list[Any]) -> None:
    ray.wait([guard.close.remote() for guard in guards], num_returns=len(guards), timeout=_JOIN_S)
