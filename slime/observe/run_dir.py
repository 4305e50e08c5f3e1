"""RunDir: where one run leaves everything it has to say. Whatever shows a run reads only this.

    config.yaml · metrics.jsonl · ledger.db · timeline.json · logs/ (one file a process) · samples/ (eval transcripts) ·
    checkpoints/

Invariants: one directory holds one run and nothing else, claimed by creating metrics.jsonl exclusively, so that two
starts at the same moment cannot share one, and held by a lock, so that none goes on with a run while it runs; whole
files are written beside their place and renamed; lines are appended whole or not at all; `latest`, beside the
directories, is replaced in one step and points at the newest run that has begun: one that failed to start leaves it as
it was.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

LATEST = "latest"
TRANSCRIPTS_A_SET = 64  # enough to look at before and after; a whole eval set of long answers would fill disks


class RunDirError(Exception):
    """A run directory that cannot be used; the message says which, why and what to do."""


class WritesYaml(Protocol):
    """A resolved configuration: writes itself as YAML."""

    def write_yaml(self, path: Path) -> Any: ...


class Transcript(Protocol):
    """What of a `Sample` goes into samples/."""

    prompt: Any  # str, or messages
    response: str
    response_length: int
    label: Any
    reward: Any  # a number, or what a reward function made of several
    status: Any


class RunDir:
    """Made by `create` or `open`, not directly. Paths of what is inside are attributes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_file = path / ".lock"
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.ledger_file = path / "ledger.db"
        self.timeline_file = path / "timeline.json"
        self.logs = path / "logs"
        self.samples = path / "samples"
        self.checkpoints = path / "checkpoints"
        self.tensorboard, self.wandb = path / "tensorboard", path / "wandb"  # where a run is told to use them
        self._lock: IO[str] | None = None  # while it is open nobody else goes on with this run
        self._is_claimed = False

    @classmethod
    def create(cls, path: str | Path, *, resume: bool = False) -> RunDir:
        """Claims `path` for a new run, or with `resume` goes on in one that is there.

        Use as a context manager: it is held until the end, and is free again if nothing was measured until then.
        Raises RunDirError if it holds a run already (without `resume`), one that is
        still running, or anything else, cannot be written, or the disk is full.
        """
        run = cls(Path(path))
        with _explained(run.path, "make the run directory"):
            run.refuse(resume=resume)
            try:
                run._claim(resume)
            except OSError:
                run.release()
                raise
        return run

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _claim(self, resume: bool) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            open(self.metrics_file, "x").close()
            self._is_claimed = True
        except FileExistsError:
            self._is_claimed = False
        is_held = self._hold()
        if not (self._is_claimed or is_held or resume):
            raise self._is_taken()
        self._is_claimed = True
        for directory in (self.logs, self.samples):
            directory.mkdir(exist_ok=True)

    def refuse(self, *, resume: bool) -> None:
        """Raises RunDirError for what `create` would refuse in what is there now. Changes nothing."""
        if self.path.name == LATEST:
            raise RunDirError(
                f"a run cannot be called {LATEST!r}: that name points at the newest run (--run-dir {self.path})"
            )
        self._latest_is_a_link()
        if self.path.is_dir():
            self._holds_nothing_else()
        if not resume and self.metrics_file.exists() and self.metrics_file.stat().st_size:
            raise self._is_taken()

    def _hold(self) -> bool:
        """Whether it can be told that nobody else holds this run. Raises RunDirError if somebody does."""
        lock = open(self.lock_file, "a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        except BlockingIOError:
            lock.seek(0)
            raise RunDirError(
                f"{self.path} is a run that is still running ({lock.read().strip()}): end it before you go on with it"
            ) from None
        except OSError:
            is_held = False  # a file system without locks
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        self._lock = lock
        return is_held

    def release(self) -> None:
        """From now on another process may go on with this run, or begin it, if nothing was measured in it yet."""
        with suppress(OSError):
            if self._is_claimed and not self.metrics_file.stat().st_size:
                self.metrics_file.unlink()
        self._is_claimed = False
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _is_taken(self) -> RunDirError:
        return RunDirError(f"{self.path} already holds a run: name another --run-dir or --run-name")

    def _holds_nothing_else(self) -> None:
        """A directory without a run may hold logs already, of whoever launches this, but nothing of anybody else's."""
        names = {path.name for path in self.path.iterdir()}
        besides = {self.ledger_file.name + end for end in ("-wal", "-shm")}  # SQLite's, if its process was killed
        foreign = sorted(names - besides - {path.name for path in vars(self).values() if isinstance(path, Path)})
        if foreign and self.metrics_file.name not in names:
            shown = ", ".join(foreign[:3]) + (" ..." if len(foreign) > 3 else "")
            raise RunDirError(f"{self.path} holds something else ({shown}): name a new directory as --run-dir")

    def _latest_is_a_link(self) -> Path:
        latest = self.path.parent / LATEST
        if latest.exists() and not latest.is_symlink():
            raise RunDirError(f"{latest} should be a link to the newest run, but something else is there: move it away")
        marks = (self.metrics_file, self.ledger_file, self.lock_file)  # a run that measured nothing has no metrics
        if latest.exists() and not any((latest / mark.name).is_file() for mark in marks):
            raise RunDirError(
                f"{latest} should be a link to the newest run, but it leads to {latest.readlink()}, which holds none:"
                " remove this link, or name a --run-dir in another place"
            )
        return latest

    def point_latest(self) -> None:
        """Says that this is now the newest run. Raises RunDirError when something else is called so."""
        latest = self._latest_is_a_link()
        temporary = latest.with_name(f".{LATEST}.{os.getpid()}")
        with _explained(latest, "write"):
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(self.path.name)
            os.replace(temporary, latest)

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """A run that is there, for reading. `runs/latest` is resolved to the run it points at."""
        path = Path(path)
        run = cls(path.parent / path.readlink() if path.is_symlink() else path)
        if not (run.metrics_file.is_file() or run.ledger_file.is_file()):
            raise RunDirError(
                f"{path} holds no run: there is neither {run.metrics_file.name} nor {run.ledger_file.name} in it"
                f"{_runs_beside(path)}"
            )
        return run

    def save_config(self, config: WritesYaml) -> None:
        """Writes config.yaml, whole or not at all."""
        with _replacing(self.config_file) as temporary:
            config.write_yaml(temporary)

    def read_config(self) -> dict[str, Any]:
        """The options of the run by section; empty where none were saved."""
        import yaml  # here, so that slime.doctor can import this room where nothing is installed

        if not self.config_file.exists():
            return {}
        try:
            sections = yaml.safe_load(self.config_file.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise RunDirError(f"{self.config_file} is damaged: {' '.join(str(error).split())}") from error
        if isinstance(sections, dict) and all(isinstance(section, dict) for section in sections.values()):
            return sections
        raise RunDirError(f"{self.config_file} is damaged: it holds no options by section")

    def read_options(self) -> dict[str, Any]:
        """The same by name. Raises RunDirError for a file that is damaged, as `read_config` does."""
        return {name: value for section in self.read_config().values() for name, value in section.items()}

    def log_file(self, process: str) -> Path:
        """Where a process (`engine-0`, `router`, `trainer-1`) writes what it prints."""
        return self.logs / f"{process}.log"

    def write_samples(self, rollout_id: int, samples: Mapping[str, Iterable[Transcript]]) -> Path:
        """Keeps the first transcripts of each held-out set, in the order of the set, as samples/<rollout_id>.jsonl.

        The order makes files comparable: line i of a set is the same prompt in every one.
        """
        path = self.samples / f"{rollout_id:06d}.jsonl"
        with _replacing(path) as temporary, open(temporary, "w", encoding="utf-8", errors="replace") as file:
            for name, transcripts in samples.items():
                for sample in islice(transcripts, TRANSCRIPTS_A_SET):
                    row = {"set": name} | {field: getattr(sample, field) for field in Transcript.__annotations__}
                    file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        return path

    def read_samples(self) -> dict[int, list[dict[str, Any]]]:
        """Every transcript kept, by rollout id in rising order."""
        files = sorted((int(f.stem), f) for f in self.samples.glob("*.jsonl") if f.stem.isdigit())
        return {number: _read_transcripts(file) for number, file in files}


def _read_transcripts(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RunDirError(f"{file}:{number} is damaged: {error}") from error
    return rows


class LineFile:
    """Appends lines for one process; `tail` is kept after the last of them, so that the file is complete at any moment.

    What a kill -9 left of a line is cut off when the file is opened again, what a full disk left of it at once.
    """

    def __init__(self, path: Path, tail: str = "") -> None:
        self.path = path
        self._tail = tail.encode()
        with _explained(path, "open"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._size = path.read_bytes().removesuffix(self._tail).rfind(b"\n") + 1
            os.ftruncate(self._fd, self._size)

    def append(self, line: str) -> None:
        """Handed to the operating system when this returns: the line outlives the process. Raises RunDirError."""
        line_bytes = line.encode() + b"\n"
        data, written = line_bytes + self._tail, 0
        with _explained(self.path, "append to"):
            try:
                while written < len(data):
                    written += os.pwrite(self._fd, data[written:], self._size + written)
            except OSError:
                os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line_bytes)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to, and renames it into place if nothing was raised."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _explained(path, "write"):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or choose another --run-dir",
    errno.EDQUOT: "the disk quota is used up: free some space, or choose another --run-dir",
    errno.EFBIG: "the limit on the size of a file is reached (ulimit -f): raise it",
    errno.EACCES: "it is not writable for this user: choose another --run-dir",
    errno.EROFS: "the file system is read-only: choose another --run-dir",
    errno.ENOTDIR: "a part of this path is a file, not a directory: choose another --run-dir",
    errno.EEXIST: "a file of that name is there: choose another --run-dir",
}


@contextmanager
def _explained(path: Path, action: str) -> Iterator[None]:
    """Turns the system's error into one that says what to do."""
    try:
        yield
    except OSError as e:
        advice = _ADVICE.get(e.errno or 0, e.strerror or str(e))
        raise RunDirError(f"cannot {action} {path}: {advice}") from e


def _runs_beside(path: Path) -> str:
    parent = path.parent
    names = (
        sorted(d.name for d in parent.iterdir() if (d / "metrics.jsonl").is_file() and not d.is_symlink())
        if parent.is_dir()
        else []
    )
    return f"; {parent} holds {', '.join(names[-5:])}" if names else ""


def unusable_run_dir(config: Any) -> list[tuple[str, str]]:
    """(option, what is wrong) with the directory that a run is told to leave everything in; none where it is not told
    one."""
    if config.run_dir is None:
        return []
    try:
        RunDir(Path(config.run_dir)).refuse(resume=config.load is not None)
    except RunDirError as error:
        return [("--run-dir" if config.run_name is None else "--run-name", str(error))]
    return []
