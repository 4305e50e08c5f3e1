"""LocalRay: a Ray node of a run's own, on this machine, as small as it goes.

Everything here that reaches into Ray's private parts does so for what its public `ray.init` does not offer: loopback
only, a directory and a token of its own, no dashboard server, no autoscaler and no log forwarder (together 300 MB and
three seconds). The version of Ray is pinned in requirements/.

Invariants: all listens on 127.0.0.1; the token is in a file that only this user can read; logs are in `logs`/ray; no
file of the user's is read or written; a signal to the driver's process group reaches none of Ray's processes; and what
is changed in this process is put back by `stop`.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services, utils, worker
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.resource_isolation_config import ResourceIsolationConfig
from ray._raylet import AuthenticationTokenLoader
from ray._raylet import Config as RayConfig

from slime.cluster.environment import environment

_MIB = 2**20
_START_TRIES = 2


class RayStartError(RuntimeError):
    """Ray did not come up or could not be joined. The message says why, or where its logs are."""


class LocalRay:
    """This process is connected to it from when it is made until it is stopped."""

    def __init__(self, directory: Path, logs: Path, *, namespace: str, cpu_slots: int | None, gpus: bool):
        """`directory` is for sockets and the token; its path must be short, and only this user may look into it.

        `cpu_slots` is what the node counts as CPUs, None for its cores; without `gpus` it counts no GPU. Raises
        RayStartError.
        """
        self._undo = ExitStack()
        logs = logs / "ray"
        logs.mkdir(exist_ok=True)
        try:
            self._use_token(directory / "token")
            self._tame(logs / "messages.log")
            node = self._start(directory, logs, cpu_slots, gpus)
            self._undo.callback(ray.shutdown)
            ray.init(address=node.gcs_address, namespace=namespace, log_to_driver=False, logging_level="error")
            self._end_with_its_head(node, logs)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Disconnects and kills Ray's own processes. Those of actors notice, or are left to the reaper."""
        self._undo.close()

    def _end_with_its_head(self, node: Node, logs: Path) -> None:
        """Ends this process when Ray's directory of all actors (gcs_server) dies: without it nothing can be asked and
        nobody can be told to end, so there is no order to keep. The reaper does the rest."""
        head = node.all_processes[ray_constants.PROCESS_TYPE_GCS_SERVER][0].process
        stopping = threading.Event()
        self._undo.callback(stopping.set)

        def watch() -> None:
            try:
                ended = os.waitid(os.P_PID, head.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # somebody else has asked how it ended
                ended = None
            if stopping.is_set():
                return
            killed = ended is not None and ended.si_code != os.CLD_EXITED
            how = f", killed by {signal.Signals(ended.si_status).name}" if killed else ""
            print(
                f"slime: Ray's gcs_server (pid {head.pid}) has ended{how}: the run cannot go on without it, and has "
                f"ended; with --save it continues from its last checkpoint by --load. Ray's logs are in {logs}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)

        threading.Thread(target=watch, name="watches Ray's head", daemon=True).start()

    def _use_token(self, file: Path) -> None:
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(32))
        self._undo.callback(_forget_token)
        self._undo.enter_context(
            environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file), "RAY_AUTH_TOKEN": None})
        )
        _forget_token()

    def _tame(self, messages: Path) -> None:
        def note(data: dict[str, Any], ignore_prefix: bool) -> None:
            with messages.open("a") as file:
                file.writelines(f"{line}\n" for line in data["lines"])

        # else Ray replaces a loopback address by a public one
        self._replace(ray_constants, "ENABLE_RAY_CLUSTER", False)
        # else its agents load the dashboard's modules, one after the other
        self._replace(utils, "get_dashboard_dependency_error", lambda: ImportError("the dashboard is not wanted"))
        # else a signal to the driver's process group, as timeout, Slurm and terminals send it, ends Ray before the
        # driver, which then waits for it in vain
        self._replace(services, "ConsolePopen", partial(subprocess.Popen, start_new_session=True))
        # what the node has to say of workers that died: `wait` reports those, with their logs
        self._replace(worker, "print_to_stdstream", note)

    def _replace(self, module: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def _start(self, directory: Path, logs: Path, cpu_slots: int | None, gpus: bool) -> Node:
        for attempt in range(_START_TRIES):
            session = directory / f"ray{attempt}"
            session.mkdir()
            (session / "logs").symlink_to(logs)
            parameters = RayParams(
                node_ip_address="127.0.0.1",
                num_cpus=cpu_slots,
                num_gpus=None if gpus else 0,
                include_dashboard=False,
                include_log_monitor=False,
                no_monitor=True,
                temp_dir=str(directory),
                session_name=session.name,
                resource_isolation_config=ResourceIsolationConfig(),
                **({} if gpus else _small_object_store(directory)),
            )
            try:
                node = _Node(parameters, head=True, shutdown_at_exit=False, spawn_reaper=True)
            except Exception as error:  # Ray raises Exception itself; what it had started by then is the reaper's
                failure = error
                continue
            self._undo.callback(node.kill_all_processes, check_alive=False, allow_graceful=False)
            logs.chmod(0o755)  # Ray opens its directories to everybody
            return node
        raise RayStartError(
            f"Ray did not start on this machine in {_START_TRIES} tries: {failure} Its logs are in {logs}. It gives up "
            f"where its helpers take longer than 15 s to start; the load is {os.getloadavg()[0]:.0f} on "
            f"{os.cpu_count()} cores"
        ) from failure


class _Node(Node):
    """A Ray node without the dashboard's server."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        self._webui_url = ""


def _forget_token() -> None:
    """Ray caches its mode and its token for the whole process."""
    RayConfig.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _small_object_store(directory: Path) -> dict[str, Any]:
    """Batches of tokens are all that passes through it, and memory is only taken for these. In `directory` where
    /dev/shm is too small for it."""
    shm = Path("/dev/shm")
    free = os.statvfs(shm).f_bavail * os.statvfs(shm).f_frsize if shm.is_dir() else 0
    size = min(2048 * _MIB, max(100 * _MIB, free // 4))
    return {"object_store_memory": size} | ({"plasma_directory": str(directory)} if size > free else {})
