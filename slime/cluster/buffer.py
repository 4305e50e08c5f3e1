"""The data buffer as an actor: hands out prompt groups, takes back unfinished ones, and keeps the ledger of them, for
all processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayTaskError

from slime.config import Config
from slime.config.checkpoint_dir import DATA
from slime.config.hooks import is_ours
from slime.data.buffer import DataBuffer
from slime.data.errors import DataError
from slime.data.ledger import Ledger, RolledBack
from slime.data.ledger_file import LedgerError
from slime.data.outcome import Outcome
from slime.data.sample import Sample
from slime.data.source import Group
from slime.observe import RunDir
from slime.rollout.producer import open_source

ANSWER_S = 120.0
TELL_S = 0.2  # notes wait so long for others, for a call takes Ray about as long as noting a hundred samples
Note = tuple[str, tuple[Any, ...]]  # a method of a Journal, and what it was told


class BufferGone(ActorUnavailableError):
    """The buffer's process does not answer any more. An error of ours: the user's function that asked it is not to
    blame, and says nothing of its own."""

    def __init__(self, actor_id: str, message: str) -> None:
        RayActorError.__init__(self, actor_id, message)

    def __reduce__(self) -> tuple[type[BufferGone], tuple[str, str]]:
        return BufferGone, (self.actor_id, self.error_msg)


class BufferActor:
    """One DataBuffer, in a process of its own."""

    buffer: DataBuffer | None = None

    def open(self, config: Config) -> int:
        """Reads the prompts; returns their number. Not in the constructor, so that bad data is an error and no dead
        actor."""
        source = open_source(config)
        self.buffer = DataBuffer(
            source,
            Ledger(RunDir(Path(config.run_dir)).ledger_file),
            directory=config.save and Path(config.save, DATA),
            load_directory=config.load and Path(config.load, DATA),
        )
        return len(source)

    def get_samples(self, num_groups: int) -> list[list[Sample]]:
        return self.buffer.get_samples(num_groups)

    def add_samples(self, groups: list[list[Sample]]) -> None:
        self.buffer.add_samples(groups)

    def told(self, notes: Sequence[Note]) -> dict[str, float]:
        """What a Journal was told, in that order. All of it is noted that can be; then the first refusal is raised.
        Returns metrics."""
        refusal = None
        for name, words in notes:
            try:
                getattr(self.buffer, name)(*words)
            except LedgerError as error:  # of one caller, perhaps; the others have told the truth
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return self.buffer.noted()

    def trained(self, rollout_id: int) -> int:
        return self.buffer.trained(rollout_id)

    def save(self, rollout_id: int, finished: Sequence[Group]) -> None:
        self.buffer.save(rollout_id, finished)

    def resume(self, first_rollout: int) -> RolledBack:
        return self.buffer.resume(first_rollout)

    def close(self, whole: bool) -> None:
        if self.buffer is not None:  # else it was never opened, and its source's error is the one to tell
            self.buffer.close(whole=whole)

    def length(self) -> int:
        return len(self.buffer)


class Buffer:
    """The actor as what rollout functions are given, a DataSource and a Journal. Picklable.

    What a Journal is told is sent together, within TELL_S and before anything else is asked; only `noted` waits for it,
    and raises what was refused. How long callers were held up is a metric of the rollout. The driver's methods return
    references. Several threads may tell and ask at once. What takes longer than ANSWER_S is a DataError; a data source
    of the user's may hang.
    """

    def __init__(self, actor: ray.actor.ActorHandle, name: str) -> None:
        """`name` is what messages call it."""
        self.actor, self.name = actor, name
        self._lock = threading.Lock()  # for the next three
        self._notes: list[Note] = []  # not sent yet
        self._sent: list[ray.ObjectRef] = []
        self._seconds = 0.0

    def __reduce__(self) -> tuple[type[Buffer], tuple[ray.actor.ActorHandle, str]]:
        return Buffer, (self.actor, self.name)

    @classmethod
    def start(cls, config: Config) -> Buffer:
        source = f" with --data-source-path {config.data_source_path}" if config.data_source_path else ""
        return cls(ray.remote(BufferActor).options(name="data-buffer", num_cpus=0).remote(), f"the data buffer{source}")

    def get_samples(self, num_groups: int) -> list[list[Sample]]:
        return self._ask("get_samples", num_groups)

    def add_samples(self, groups: list[list[Sample]]) -> None:
        self._ask("add_samples", groups)

    def save(self, rollout_id: int, finished: Sequence[Group] = ()) -> None:
        self._ask("save", rollout_id, finished)

    def load(self, rollout_id: int) -> None:
        self._ask("resume", rollout_id + 1)

    def __len__(self) -> int:
        return self._ask("length")

    # As a Journal.

    def generating(self, ids: Sequence[int], rollout_id: int) -> None:
        self._tell("generating", tuple(ids), rollout_id)

    def finished(self, finished: Sequence[Outcome]) -> None:
        self._tell("finished", tuple(finished))

    def drop(self, ids: Sequence[int], reason: str) -> None:
        self._tell("drop", tuple(ids), reason)

    def batched(self, rollout_id: int, batch: Sequence[Outcome]) -> None:
        self._tell("batched", rollout_id, batch, at_once=True)

    def noted(self) -> dict[str, float]:
        start = time.perf_counter()
        with self._lock:
            self._send()
            sent, self._sent = self._sent, []
        metrics = self._get(sent, "what it was told")
        with self._lock:
            seconds, self._seconds = self._seconds + time.perf_counter() - start, 0.0
        return (metrics[-1] if metrics else {}) | {"perf/ledger_time": seconds}

    def _tell(self, name: str, *words: Any, at_once: bool = False) -> None:
        start = time.perf_counter()
        with self._lock:
            self._notes.append((name, words))
            if at_once:
                self._send()
            elif len(self._notes) == 1:
                timer = threading.Timer(TELL_S, self._send_late)
                timer.daemon = True
                timer.start()
            self._seconds += time.perf_counter() - start

    def _ask(self, method: str, *words: Any) -> Any:
        with self._lock:  # the actor hears them in the order in which they get it
            self._send()
            answer = getattr(self.actor, method).remote(*words)
        return self._get(answer, method)

    def _get(self, asked: Any, what: str) -> Any:
        try:
            return ray.get(asked, timeout=ANSWER_S)
        except GetTimeoutError:
            raise DataError(
                f"{self.name} has not answered {what} for {ANSWER_S:g} s: its data source hangs, or the disk of the"
                " run's directory"
            ) from None
        except RayActorError as error:
            raise BufferGone(error.actor_id, str(error)) from None
        except RayTaskError as error:
            if is_ours(error.cause):
                raise error.cause from None
            raise

    def _send_late(self) -> None:
        with self._lock:
            self._send()

    def _send(self) -> None:
        if self._notes:
            self._sent.append(self.actor.told.remote(self._notes))
            self._notes = []  # now, so that whoever comes next is told why it could not be sent

    # As the driver calls it.

    def open(self, config: Config) -> ray.ObjectRef:
        return self.actor.open.remote(config)

    def resume(self, first_rollout: int) -> ray.ObjectRef:
        return self.actor.resume.remote(first_rollout)

    def trained(self, rollout_id: int) -> ray.ObjectRef:
        return self.actor.trained.remote(rollout_id)

    def close(self, *, whole: bool) -> ray.ObjectRef:
        return self.actor.close.remote(whole)
