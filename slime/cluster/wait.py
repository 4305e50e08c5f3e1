"""Waiting for actors: every wait has a deadline, a name, and blames whoever failed first.

Invariants:
- `wait` returns what `ray.get` returns, or raises `Stalled` (the deadline passed; the message says who is still awaited
  and since when) or `ActorFailed` (somebody failed; the message names the actor, where it failed, and its log file).
- When several actors fail together, the one reported is the cause and not a consequence: a process that died comes
  before an exception, and an exception before the broken connections that its peers then see. Among equals the earliest
  wins. Of one that failed since another had died, that one is reported; of one whose node has died, the node.
- Ctrl+C is answered within half a second, and so is what `watch` looks for.
"""

from __future__ import annotations

import builtins
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from slime.cluster import interrupt

_POLL_S = 0.5
_SETTLE_S = 2.0
"""How long to listen on after a first failure: a killed peer is often reported after those it disturbed."""
_VERDICT_S = 60.0
"""How long Ray may take to find out why somebody does not answer: of a node 15 s, if nobody is at home."""
_LOG_LINES = 12
_SCREENFUL = 10
_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused|aborted)|broken pipe|socket|gloo|nccl|timed out|timeout|peer|store|disconnected",
    re.IGNORECASE,
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RAY_MARK = re.compile(r":(job_id|actor_name|task_name):")


class Stalled(TimeoutError):
    """A deadline passed. The message says what was awaited, from whom, since when."""


class ActorFailed(RuntimeError):
    """An actor raised or died: `actor` is its name, `log` its log file, `cause` the exception if there was one."""

    def __init__(self, message: str, actor: str, cause: BaseException | None, log: Path | None):
        super().__init__(message)
        self.actor = actor
        self.cause = cause
        self.log = log


@dataclass(frozen=True)
class _Failure:
    """One failed reference, as found after `order` others."""

    ref: ray.ObjectRef
    error: BaseException
    order: int
    is_watched: bool

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is nearer to the first cause."""
        root = _root(self.error)
        if self.is_watched or isinstance(root, RayError):
            return 0, self.order
        consequence = isinstance(root, (builtins.ConnectionError, builtins.TimeoutError)) or (
            isinstance(root, RuntimeError) and _CONSEQUENCE.search(str(root))
        )
        return (2 if consequence else 1), self.order


def wait(
    refs: Any,
    what: str,
    timeout: float,
    watch: Callable[[], Sequence[ray.ObjectRef]] = tuple,
) -> Any:
    """`ray.get(refs)` with a deadline of `timeout` seconds; `what` completes the sentence "waiting for ...".

    `refs` is one reference or a list of them; the result has the same form. `watch` is called now and then: it
    does whatever is to be done meanwhile, which may be to wait itself, and returns calls on others. When one of those
    fails, so does the wait. Raises Stalled, ActorFailed, or what `watch` does.
    """
    single = isinstance(refs, ray.ObjectRef)
    asked: list[ray.ObjectRef] = [refs] if single else list(refs)
    pending = dict.fromkeys(asked)  # a set that keeps its order: there may be many
    over: set[ray.ObjectRef] = set()  # of those who are watched
    began, clock = time.monotonic(), time.strftime("%H:%M:%S")
    values: dict[ray.ObjectRef, Any] = {}
    while pending:
        watched = [ref for ref in watch() if ref not in pending and ref not in values]
        over.intersection_update(watched)
        watched = [ref for ref in watched if ref not in over]
        left = began + timeout - time.monotonic()
        if left <= 0:
            raise stalled(what, list(pending), len(values) + len(pending), timeout, clock)
        looked_at = [*pending, *watched]
        ray.wait(looked_at, num_returns=1, timeout=min(_POLL_S, left))
        interrupt.check()
        ready, _ = ray.wait(looked_at, num_returns=len(looked_at), timeout=0)
        for ref in ready:  # all of them, before anybody is looked at again
            try:
                value = ray.get(ref)
            except (RayError, Exception) as error:  # RayTaskError(X) also inherits from X, whatever X is
                failure = _Failure(ref, error, 0, is_watched=ref in watched)
                others = [other for other in [*pending, *watched] if other != ref]
                raise _blame(what, failure, others, watched) from None
            if ref in pending:
                values[ref] = value
                del pending[ref]
            else:
                over.add(ref)
    results = [values[ref] for ref in asked]
    return results[0] if single else results


def failure_of(ref: ray.ObjectRef, what: str) -> ActorFailed | None:
    """How a call failed that has ended; None if it did not."""
    try:
        ray.get(ref)
    except (RayError, Exception) as error:
        return _blame(what, _Failure(ref, error, 0, is_watched=False), [], [])
    return None


def stalled(what: str, pending: list[ray.ObjectRef], total: int, timeout: float, clock: str) -> Stalled:
    """For `pending`, of `total` calls, which have been waited for since `clock`."""
    names = ", ".join(dict.fromkeys(describe(ref) for ref in pending))
    return Stalled(
        f"waited {timeout:g} s (since {clock}) for {what}: {total - len(pending)} of {total} are done, "
        f"still waiting for {names}"
    )


def _blame(what: str, first: _Failure, pending: list[ray.ObjectRef], watched: list[ray.ObjectRef]) -> ActorFailed:
    """The exception to raise for the failure nearest to the first cause, having listened to the others for a moment."""
    failures = [first]
    until = time.monotonic() + _SETTLE_S
    while pending and first.rank[0] > 0 and (left := until - time.monotonic()) > 0:
        ready, pending = ray.wait(pending, num_returns=1, timeout=min(_POLL_S, left))
        for ref in ready:
            try:
                ray.get(ref)
            except (RayError, Exception) as error:
                failures.append(_Failure(ref, error, len(failures), is_watched=ref in watched))
    culprit = min(failures, key=lambda failure: failure.rank)
    root = _root(culprit.error)
    if isinstance(root, ActorUnavailableError):
        _await_verdict(root)
    dead = _dead(root)
    who = _describe(dead) if dead else describe(culprit.ref)
    log = _log_file(dead) if dead else log_file(culprit.ref)
    lines = [f"{who} failed while the driver was waiting for {what}: {_headline(root)}"]
    lines += ["  " + line for line in _details(culprit.error, log)]
    if log is not None:
        lines.append(f"  its log: {log}")
    others = {describe(failure.ref) for failure in failures} - {who}
    if others:
        lines.append(f"  then also failed: {', '.join(sorted(others))}")
    if len(lines) > _SCREENFUL:
        lines.append(lines[0])  # who reads a terminal reads its last line first
    return ActorFailed("\n".join(lines), actor=who, cause=None if isinstance(root, RayError) else root, log=log)


def _root(error: BaseException) -> BaseException:
    """The exception that user code raised, under the wrappers that Ray puts around it at each hop."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def _died(root: BaseException) -> bool:
    return isinstance(root, RayActorError) and not root.actor_init_failed


def _dead(root: BaseException) -> dict[str, Any]:
    """Who has died, as Ray's directory knows him; empty where nobody has."""
    return ray._private.state.actors(root.actor_id) if _died(root) and root.actor_id else {}


def _await_verdict(root: ActorUnavailableError) -> None:
    """Ray says at once that somebody does not answer, and later that he has died, or his node."""
    until = time.monotonic() + _VERDICT_S
    while _dead(root).get("State") != "DEAD" and time.monotonic() < until:
        time.sleep(_POLL_S)
        interrupt.check()


def _headline(root: BaseException) -> str:
    if _died(root):
        node = _dead_node(_dead(root))
        return f"its node died: {node}" if node else "its process died"
    text = str(root).strip()
    if isinstance(root, RayError):  # Ray's words, or what it printed of an exception in __init__: the last line says it
        return text.splitlines()[-1]
    return f"{type(root).__name__}: {text.splitlines()[0]}" if text else repr(root)


def _details(error: BaseException, log: Path | None) -> list[str]:
    """Where an exception was raised; for a process that died, what Ray knows of it and the last lines of its log."""
    root = _root(error)
    if type(root).__module__.startswith("slime.") and not _died(root):  # written for people: says all by itself
        return str(root).strip().splitlines()[1:]  # and its log has the traceback
    text = _ANSI.sub("", str(error)).strip()
    if not _died(root):
        lines = [line for line in text.splitlines() if line.strip(" ^")]
        return [re.sub(r"ray::(.+\(\)) \(pid=.*\)$", r"in \1", line) for line in lines]
    reason = _ANSI.sub("", str(root)).strip().splitlines()[-1].partition(" Some common causes")[0]
    tail = _tail(log)
    if _dead_node(_dead(root)):
        return [reason]
    return [
        reason,
        "if the machine ran out of memory, the kernel killed it and says so in its log (dmesg)",
        *(["last lines of its log:", *("  " + line for line in tail)] if tail else []),
    ]


def _tail(log: Path | None) -> list[str]:
    if log is None or not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        text = file.read().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip() and not _RAY_MARK.match(line)]
    return lines[-_LOG_LINES:]


def _actor(ref: ray.ObjectRef) -> dict[str, Any]:
    """What Ray's directory knows of the actor that makes `ref`; empty for tasks and for objects that were put."""
    actor_id = ref.task_id().actor_id()
    return {} if actor_id.is_nil() else ray._private.state.actors(actor_id.hex())


def _dead_node(actor: dict[str, Any]) -> str | None:
    """What messages call the node of an actor, if it has died."""
    of_actor = actor["Address"]["NodeID"] if actor else None
    dead = [node for node in ray.nodes() if node["NodeID"] == of_actor and not node["Alive"]]
    return f"{dead[0]['NodeManagerHostname']} at {dead[0]['NodeManagerAddress']}" if dead else None


def describe(ref: ray.ObjectRef) -> str:
    """How messages call whoever makes `ref`: the actor's name (its class if it has none), and its process."""
    actor = _actor(ref)
    return _describe(actor) if actor else f"task {ref.task_id().hex()[:8]}"


def _describe(actor: dict[str, Any]) -> str:
    name = actor["Name"] or actor["ActorClassName"]
    return (
        f"{name} (pid {actor['Pid']} on {actor['Address']['IPAddress']})" if actor["Pid"] else f"{name} (not started)"
    )


def log_file(ref: ray.ObjectRef) -> Path | None:
    """The log of the process that makes `ref`, if it ran on this machine."""
    return _log_file(_actor(ref))


def _log_file(actor: dict[str, Any]) -> Path | None:
    pid = actor.get("Pid")
    if not pid or actor["Address"]["NodeID"] != ray.get_runtime_context().get_node_id():
        return None  # elsewhere somebody else may have the pid
    logs = Path(ray._private.worker._global_node.get_logs_dir_path()).resolve()
    return next(iter(sorted(logs.glob(f"worker-*-{pid}.err"))), None)
