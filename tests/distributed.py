"""Run a function on N gloo processes of this machine, as a test.

    results = run_ranks(function, 2, argument, deadline=60)

Each rank is a fresh process (spawned: nothing that the function patches reaches the test process) with one thread and torch.distributed
initialised. The function has to be importable: defined at the top of a module under tests/.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import io
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

GRACE = 3.0  # seconds that a rank has to write down its stack when the deadline is over


def run_ranks(function: Callable[..., Any], world_size: int, *arguments: Any, deadline: float = 120.0) -> list[Any]:
    """function(*arguments) on ranks 0..world_size-1; returns what each returned, by rank (tensors as copies).

    Raises AssertionError with the traceback of the first rank that failed or, after `deadline` seconds, with the stacks of those
    that are still running. No process outlives the call.
    """
    context = multiprocessing.get_context("spawn")
    end = time.monotonic() + deadline
    with tempfile.TemporaryDirectory() as scratch:
        ranks: dict[Connection, int] = {}
        processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(theirs, scratch, rank, world_size, end, function, arguments), daemon=True)
            process.start()
            theirs.close()  # so that the death of the rank is the end of the pipe
            processes.append(process)
            ranks[ours] = rank
        results: dict[int, Any] = {}
        try:
            while ranks:
                ready = wait(list(ranks), timeout=max(0.0, end + GRACE - time.monotonic()))
                if not ready:
                    stacks = "\n".join(f"rank {rank}:\n{_stack_file(scratch, rank).read_text()}" for rank in sorted(ranks.values()))
                    raise AssertionError(f"{function.__name__}: not done after {deadline:.0f} s. Still running:\n{stacks}")
                for connection in ready:
                    rank = ranks.pop(connection)
                    try:
                        data = connection.recv_bytes()
                    except EOFError:
                        processes[rank].join(GRACE)
                        raise AssertionError(f"rank {rank} of {world_size} died with exit code {processes[rank].exitcode}") from None
                    ok, value = _unpacked(data)
                    assert ok, f"rank {rank} of {world_size} failed in {function.__name__}:\n{value}"
                    results[rank] = value
            for process in processes:
                process.join(max(0.0, end + GRACE - time.monotonic()))
        finally:
            for process in processes:
                process.kill()
                process.join()
    return [results[rank] for rank in range(world_size)]


def _packed(value: Any) -> bytes:
    """torch's own format: plain pickling would name modules of Megatron, which replaces how tensors are pickled."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)  # from a process of this very test


def _stack_file(scratch: str, rank: int) -> Path:
    return Path(scratch) / f"stack-{rank}"


def _rank(
    report: Connection,
    scratch: str,
    rank: int,
    world_size: int,
    end: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    remaining = max(1.0, end - time.monotonic())
    stack = _stack_file(scratch, rank).open("w")
    faulthandler.dump_traceback_later(remaining, file=stack)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{scratch}/store",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=remaining + 2 * GRACE),  # a hang is reported with stacks first
        )
        answer = _packed((True, function(*arguments)))
        dist.barrier()  # nobody leaves while another still talks to it
    except BaseException:
        answer = _packed((False, traceback.format_exc()))
    # Reported before the connections to other ranks break: theirs would only be consequences.
    report.send_bytes(answer)
    report.close()
    faulthandler.cancel_dump_traceback_later()
    if dist.is_initialized():
        dist.destroy_process_group()
