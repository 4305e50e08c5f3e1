"""Victims: the kinds of processes that a run is made of, and how one is found among those that are alive.

Every process that a run starts inherits its environment, and so a mark that the caller put there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from slime.config import Config

MARK = "SLIME_CHAOS"


@dataclass(frozen=True)
class Kind:
    """`is_it(process)` tells by the command line, or the title that Ray gives a process; `is_there(config)` says
    whether a run has any; `is_replaced` whether a run with --use-fault-tolerance goes on without a new start."""

    is_it: Callable[[psutil.Process], bool]
    is_there: Callable[[Config], bool]
    is_replaced: bool = False


def _serves(process: psutil.Process) -> bool:
    return process.cmdline()[1:3] == ["-m", "slime.inference.launch"]


def _actor(name: str) -> Callable[[psutil.Process], bool]:
    return lambda process: any(word.startswith(f"ray::{name}") for word in process.cmdline())


KINDS = {
    "engine": Kind(
        lambda process: _serves(process) and not _serves(process.parent()),  # its workers are forked from it
        lambda config: config.has_engines and not config.rollout_external_engine_addrs,
        is_replaced=True,
    ),
    "router": Kind(
        lambda process: process.name().startswith("sglang::router"),
        lambda config: config.has_engines and config.sglang_router_ip is None,
        is_replaced=True,
    ),
    "trainer": Kind(_actor("TrainActor"), lambda config: not config.debug_rollout_only),
    "critic": Kind(_actor("CriticActor"), lambda config: config.has_critic),
    "rollout": Kind(_actor("RolloutActor"), lambda config: True),
    "buffer": Kind(_actor("BufferActor"), lambda config: True),
    "driver": Kind(lambda process: "train.py" in process.cmdline()[1], lambda config: True),
}


def lives(process: psutil.Process) -> bool:
    """Not so of one that has ended and whose status nobody has asked for yet, though the system takes signals for
    it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """The processes that were started, by whomever, with MARK=`mark` in their environment, and live."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and lives(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def one_of(kind: str, mark: str, dice: random.Random) -> psutil.Process | None:
    """One of the processes of a kind; None while there is none."""
    found = []
    for process in marked(mark):
        try:
            if KINDS[kind].is_it(process):
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return dice.choice(sorted(found, key=lambda process: process.pid)) if found else None
