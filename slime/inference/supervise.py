"""`python -m slime.inference.supervise STARTER_PID COMMAND...`: run a server, and end all of it when its starter ends.

Invariants
- When this process has exited by itself, nothing of the server is left: no process and no temporary file. It exits when
  the server ends, when the starter ends (however: the kernel tells), and on SIGTERM.
- Killed itself, it takes the server with it; SGLang's workers then follow their parent.
- While all is well it sleeps.

The exit status is the server's, or 128 + the signal that ended it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
RESOURCE_TRACKER_S = 5.0
GIVE_UP_S = 30.0
libc = ctypes.CDLL(None, use_errno=True)


def main(starter: int, command: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # a worker whose parent has died is handed to us, so that we still find it
    supervisor = os.getpid()

    def die_with_supervisor() -> None:
        # Between fork and exec. The signal also comes when the forking thread ends; here that is the main thread.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(128 + signal.SIGKILL)

    try:
        starter_fd = os.pidfd_open(starter)
    except ProcessLookupError:
        return 128 + signal.SIGTERM
    if os.getppid() != starter:  # it has ended, and its number may be another's by now
        return 128 + signal.SIGTERM
    temporary = tempfile.mkdtemp(prefix="slime-server-")
    try:
        server = subprocess.Popen(command, env=environment(temporary), preexec_fn=die_with_supervisor)
        watched = select.poll()
        watched.register(starter_fd, select.POLLIN)
        watched.register(os.pidfd_open(server.pid), select.POLLIN)
        watched.poll()
        return exit_status(server)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        kill_descendants(spare_trackers=True)
        shutil.rmtree(temporary, ignore_errors=True)  # at once: who asked us to end may not wait for long
        await_descendants()


def environment(temporary: str) -> dict[str, str]:
    """SGLang leaves sockets and other files in the temporary directory when it is killed: it gets one of its own. The
    compiler's cache is worth keeping."""
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")
    return {"TORCHINDUCTOR_CACHE_DIR": str(compiled), **os.environ, "TMPDIR": temporary}


def exit_status(server: subprocess.Popen[bytes]) -> int:
    status = server.poll()
    if status is None:  # the starter has ended, the server has not
        return 128 + signal.SIGTERM
    return status if status >= 0 else 128 - status


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def kill_descendants(*, spare_trackers: bool) -> None:
    for process in descendants():
        try:
            if not (spare_trackers and "resource_tracker" in " ".join(process.cmdline())):
                process.kill()
        except psutil.NoSuchProcess:
            continue


def await_descendants() -> None:
    """Kills until nobody is left. Resource trackers of multiprocessing go last: once the others are dead they unlink
    what those left in /dev/shm, and end by themselves."""
    start = time.monotonic()
    while processes := descendants():
        elapsed = time.monotonic() - start
        if elapsed > GIVE_UP_S:
            print(f"supervise: could not end {processes}", file=sys.stderr, flush=True)
            return
        kill_descendants(spare_trackers=elapsed < RESOURCE_TRACKER_S)
        psutil.wait_procs(processes, timeout=1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
