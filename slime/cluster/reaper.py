"""The reaper: what ends a run's processes and files, however the run ends.

A tiny detached process, started before anything else of a run. It holds the reading end of a pipe whose writing end is
the driver's alone, so that it learns of the driver's death however that came about. It then ends what carries the run's
id and nothing else.

Invariants:
- Everything that a run starts carries `SLIME_RUN_ID=<its id>` in its environment; a process belongs to the run if it
  does, or if it descends from one that does. Only processes of this user are looked at, and a process is identified and
  signalled through one pidfd, so that a reused pid is never hit.
- A file in /dev/shm belongs to the run if one of its processes had it mapped, or if its name carries the pid of one. It
  is removed only when no living process has it mapped or open. What cannot be known: a file whose name says nothing,
  and whose owner dies before the next look (a tenth of a second), stays.
- A run is alive as long as its record is locked. Driver and reaper both hold the lock, which the kernel drops with the
  process: no pid is ever compared. Remains are cleared only under the exclusive lock.
- Standard library only, and nothing from this package: it starts in 20 ms and depends on nothing that can break.

`python -m slime.cluster.reaper` clears the remains of dead runs and says what it cleared.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN_ID = "SLIME_RUN_ID"
_REAPER = "SLIME_REAPER"
GRACE_S = 3.0
"""After a driver died without a word: how long its processes may take to end by themselves."""
_LOOK_S = 0.1
_LOOKS = 30
"""How often a name in /dev/shm is looked at before it counts as somebody else's: it is made before it is mapped."""
_TERM_S = 0.5
_TRACKERS_S = 1.0
_KILL_S = 5.0
_STARTING_S = 60.0
_SHM = Path("/dev/shm")
_SOCKET_PATH_LIMIT = 107
_RECORD = "run.json"


def home() -> Path:
    """The directory of this user's run records and Ray sessions on this machine; nobody else can look into it.

    Raises OSError when it can't be made, is no directory, or belongs to somebody else.
    """
    name = f"slime-{os.getuid()}"
    longest = len(f"/{name}/0123456789ab-1234567/ray0/sockets/plasma_store.1")
    base = tempfile.gettempdir()
    path = Path(base if len(base) + longest <= _SOCKET_PATH_LIMIT else "/tmp") / name
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    there = path.lstat()
    if there.st_uid != os.getuid():
        raise PermissionError(
            f"{path} belongs to another user (uid {there.st_uid}): set TMPDIR to a directory of yours"
        )
    if not stat.S_ISDIR(there.st_mode):
        raise NotADirectoryError(f"{path} should be a directory of slime's, and is none: move it away, or set TMPDIR")
    path.chmod(0o700)
    return path


# -- processes -------------------------------------------------------------------------------------


def _pids() -> list[int]:
    """Processes of this user, this one excepted."""
    uid, me = os.getuid(), os.getpid()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != me:
            try:
                if entry.stat().st_uid == uid:
                    found.append(int(entry.name))
            except OSError:  # it has ended since
                continue
    return found


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:  # it has ended since
        return b""


def _state_and_parent(pid: int) -> tuple[str, int]:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1])) if len(fields) > 1 else ("", 0)


def members(run_id: str) -> list[int]:
    """The living processes of a run: those that carry its id, and their descendants. Never the caller nor a reaper."""
    mark, reaper = f"{RUN_ID}={run_id}".encode(), f"{_REAPER}={run_id}".encode()
    parents: dict[int, int] = {}
    marked = set()
    for pid in _pids():
        state, parent = _state_and_parent(pid)
        if state in ("", "Z", "X"):
            continue
        parents[pid] = parent
        environ = _read(pid, "environ").split(b"\0")
        if reaper in environ:
            del parents[pid]
        elif mark in environ:
            marked.add(pid)

    def belongs(pid: int) -> bool:
        seen = set()
        while pid in parents and pid not in seen:
            if pid in marked:
                return True
            seen.add(pid)
            pid = parents[pid]
        return False

    return [pid for pid in parents if belongs(pid)]


def _signal(run_id: str, number: signal.Signals, spare_trackers: bool) -> list[int]:
    """Signals the run's processes and returns which they were."""
    handles = {}
    for pid in members(run_id):
        try:
            handles[pid] = os.pidfd_open(pid)
        except OSError:  # it has ended since
            continue
    belonging = set(members(run_id))  # asked again once the handles are held: none can have become somebody else since
    signalled = []
    for pid, handle in handles.items():
        if pid in belonging and not (spare_trackers and b"resource_tracker" in _read(pid, "cmdline")):
            try:
                signal.pidfd_send_signal(handle, number)
                signalled.append(pid)
            except ProcessLookupError:
                pass
        os.close(handle)
    return signalled


def _gone(run_id: str, seconds: float) -> bool:
    """Whether the run's processes have all ended within `seconds`."""
    deadline = time.monotonic() + seconds
    while members(run_id):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.03)
    return True


def _end(run_id: str) -> list[int]:
    """Ends the run's processes, politely first; returns those that had to be killed.

    Python's resource trackers go last: once their family is dead they remove what it left in /dev/shm, and end by
    themselves. Raises TimeoutError if a process survives SIGKILL.
    """
    _signal(run_id, signal.SIGTERM, spare_trackers=True)
    if _gone(run_id, _TERM_S):
        return []
    began, killed = time.monotonic(), set()
    while not _gone(run_id, 0.1):  # again and again: what is being killed may just have started something
        waited = time.monotonic() - began
        killed.update(_signal(run_id, signal.SIGKILL, spare_trackers=waited < _TRACKERS_S))
        if waited > _KILL_S:
            raise TimeoutError(f"processes {members(run_id)} survive SIGKILL")
    return sorted(killed)


# -- shared memory ---------------------------------------------------------------------------------


def _shm_names() -> set[str]:
    return set(os.listdir(_SHM)) if _SHM.is_dir() else set()


def _shm_used_by(pids: Iterable[int]) -> set[str]:
    """Names in /dev/shm that these processes have mapped or open."""
    prefix = f"{_SHM}/"
    paths = set()
    for pid in pids:
        paths.update(_read(pid, "maps").decode("utf-8", "replace").splitlines())
        try:
            paths.update(os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
        except OSError:  # it has ended since
            continue
    return {path.partition(prefix)[2] for path in paths if prefix in path and not path.endswith(" (deleted)")}


# -- a run's record --------------------------------------------------------------------------------


@dataclass
class Record:
    """What is known of a run on this machine: its directory (record, token, Ray session), what it had in /dev/shm."""

    directory: Path
    began: float = field(default_factory=time.time)
    pids: set[int] = field(default_factory=set)
    shm: set[str] = field(default_factory=set)
    unknown: dict[str, int] = field(default_factory=dict, repr=False)
    """Names in /dev/shm that were not of this run when last looked at, and how often that was."""

    @property
    def run_id(self) -> str:
        return self.directory.name.lstrip(".").partition("-")[0]

    @staticmethod
    def read(directory: Path) -> Record:
        """Raises FileNotFoundError when there is no record in `directory`."""
        text = (directory / _RECORD).read_text()
        record = Record(directory, began=directory.stat().st_ctime)
        try:
            record.update(json.loads(text))
        except ValueError:  # killed while writing: what matters is in the directory's name
            pass
        return record

    def update(self, stored: dict[str, Any]) -> None:
        """Adds what another record of the same run has seen, as `to_json` wrote it."""
        self.began = min(self.began, stored["began"])
        self.pids.update(stored["pids"])
        self.shm.update(stored["shm"])

    def to_json(self) -> str:
        return json.dumps({"began": self.began, "pids": sorted(self.pids), "shm": sorted(self.shm)})

    def write(self) -> None:
        """In place, since the lock sits on this file."""
        with (self.directory / _RECORD).open("r+") as file:
            file.write(self.to_json())
            file.truncate()

    def look(self, final: bool = False) -> None:
        """Notes which names in /dev/shm are the run's. Costs one listing as long as no name is new."""
        names = _shm_names()
        self.unknown = {name: looks for name, looks in self.unknown.items() if name in names}
        fresh = {name for name in names - self.shm if self.unknown.get(name, 0) < _LOOKS}
        if not fresh and not final:
            return
        before = len(self.pids) + len(self.shm)
        pids = members(self.run_id)
        self.pids.update(pids)
        used = _shm_used_by(pids)
        for name in fresh | used:
            if name in used or self._carries_pid(name):
                self.shm.add(name)
                self.unknown.pop(name, None)
            else:
                self.unknown[name] = self.unknown.get(name, 0) + 1
        if len(self.pids) + len(self.shm) != before and not final:
            self.write()

    def sweep(self, grace: float) -> list[str]:
        """Ends the run's processes, after `grace` seconds in which they may end by themselves; removes its files.

        Returns what was ended or removed, for a log. Raises TimeoutError if a process survives SIGKILL; the record
        stays then.
        """
        self.look(final=True)
        done = []
        if not _gone(self.run_id, grace):
            self.look(final=True)
            done += [f"killed process {pid}" for pid in _end(self.run_id)]
        done += [f"removed {_SHM}/{name}" for name in self._unlink()]
        shutil.rmtree(self.directory, ignore_errors=True)
        return done

    def _unlink(self) -> Iterator[str]:
        """Removes the run's files in /dev/shm, yields their names."""
        candidates = {name for name in _shm_names() if name in self.shm or self._carries_pid(name)}
        in_use = _shm_used_by(_pids()) if candidates else set()
        for name in sorted(candidates - in_use):
            try:
                info = (_SHM / name).lstat()
                if info.st_uid == os.getuid() and info.st_ctime >= self.began:
                    (_SHM / name).unlink()
                    yield name
            except FileNotFoundError:  # its owner has just removed it
                continue

    def _carries_pid(self, name: str) -> bool:
        return any(int(number) in self.pids for number in re.findall(r"\d{3,}", name))


@contextmanager
def _locked(path: Path, how: int) -> Iterator[bool]:
    """Whether the lock `how` on `path` could be had; it is held inside the block."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


# -- the watching process and its guardian ---------------------------------------------------------


class Guard:
    """The driver's side: opens the record of a run, starts its reaper, and at the end lets it sweep."""

    def __init__(self, run_id: str, log: Path):
        """`log` receives what the reaper has to say. Everything that should be swept is to be started after this."""
        self.directory = home() / f"{run_id}-{os.getpid()}"
        fresh = self.directory.with_name(f".{self.directory.name}")  # locked before it can be seen
        fresh.mkdir(mode=0o700)
        self._lock = (fresh / _RECORD).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        Record(fresh).write()
        fresh.rename(self.directory)
        self._seen = Record(self.directory)
        reading, self._writing = os.pipe()
        self._ended, ended = os.pipe()  # the other end is the reaper's alone: it closes when the reaper ends
        environ = {_REAPER: run_id, **{name: value for name, value in os.environ.items() if name != RUN_ID}}
        with log.open("ab") as file:
            subprocess.run(
                [sys.executable, "-I", "-S", __file__, "--watch", str(self.directory)],
                stdin=reading, stdout=file, stderr=file, env=environ, pass_fds=[ended], check=True,
            )  # fmt: skip
        os.close(reading)
        os.close(ended)

    def look(self) -> None:
        """Notes what the run has in /dev/shm now. To be called before processes of the run begin to end."""
        self._seen.look(final=True)

    def close(self, timeout: float = 20.0) -> None:
        """Ends everything that the run has started; returns when it is gone (usually within a second)."""
        try:
            os.write(self._writing, self._seen.to_json().encode())
        except BrokenPipeError:
            pass
        os.close(self._writing)
        select.select([self._ended], [], [], timeout)
        os.close(self._ended)
        if self.directory.exists():  # somebody killed the reaper
            record = Record.read(self.directory)
            record.update(json.loads(self._seen.to_json()))
            record.sweep(grace=0.0)
        self._lock.close()


def watch(directory: Path) -> None:
    """The reaper's life: note what the run has in /dev/shm until standard input ends, then sweep."""
    if os.fork():  # nobody's child: Ray kills the children of a worker that ends
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    record = Record.read(directory)
    with _locked(directory / _RECORD, fcntl.LOCK_SH):
        while not select.select([0], [], [], _LOOK_S)[0]:
            record.look()
        quick = sys.stdin.read()  # nothing if the driver died without a word, else what it has seen itself
        if quick:
            record.update(json.loads(quick))
        for line in record.sweep(0.0 if quick else GRACE_S):
            if not quick:
                print(line, flush=True)


def clear_dead_runs() -> list[str]:
    """Clears what runs left whose driver and reaper were both killed; living runs are not touched.

    Says what it did, a line each.
    """
    done = []
    for directory in home().iterdir():
        try:
            if directory.name.startswith(".") and time.time() - directory.stat().st_ctime < _STARTING_S:
                continue
            record = Record.read(directory)
            with _locked(directory / _RECORD, fcntl.LOCK_EX) as dead:
                if dead:
                    try:
                        lines = [*record.sweep(grace=0.0), "cleared its remains"]
                    except TimeoutError as error:  # nobody can end those, and this run is not theirs
                        lines = [f"{error}; what it has stays"]
                    done += [f"an earlier run that had not ended in order ({record.run_id}): {line}" for line in lines]
        except (FileNotFoundError, NotADirectoryError):  # it has ended since, or is no run's
            continue
    return done


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        watch(Path(sys.argv[2]))
    else:
        print("\n".join(clear_dead_runs()) or "no dead runs on this machine")
