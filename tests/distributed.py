"""Run a function on N gloo processes of this machine, as a test.

    results = run_ranks(function, 2, argument, deadline=60)

Each rank is a new process with one thread and torch.distributed initialised; nothing that the function patches reaches
the test process or a later rank. It is forked off a server that has imported the trainer, which takes 5 s of CPU, more
than most functions run; where there is a GPU, which does not outlive a fork, it is spawned. The function has to be
importable: defined at the top of a module under tests/.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

START = 120.0  # seconds that the processes may take to start, on a busy machine
GRACE = 3.0  # seconds between the first sign of an end and the last
# By the server: what ranks import, optimizers of torch at their first step, and the modules of the functions.
IMPORTED = ["slime.training.trainer", "torch._dynamo", "pytest"]


def processes(spawned: bool = torch.cuda.is_available()) -> BaseContext:
    """What starts them, from a server that has imported the trainer unless they are to be spawned."""
    context = multiprocessing.get_context("spawn" if spawned else "forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    deadline: float = 120.0,
    backend: str = "gloo",
    spawned: bool = torch.cuda.is_available(),
) -> list[Any]:
    """function(*arguments) on ranks 0..world_size-1; returns what each returned, by rank (tensors as copies).

    Raises AssertionError with the traceback of the first rank that failed or, when they take more than `deadline`
    seconds, with the stack of each that was still running. No process outlives the call. With the backend nccl each
    rank has the GPU of its number. Ranks that are `spawned` have nothing imported.
    """
    context = processes(spawned)
    latest_end = time.monotonic() + START + deadline + GRACE
    started = []
    ranks: dict[Connection, int] = {}
    results: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        stacks = [Path(scratch) / f"stack-{rank}" for rank in range(world_size)]
        try:
            for rank in range(world_size):
                stacks[rank].touch()
                ours, theirs = context.Pipe(duplex=False)
                where = (theirs, f"file://{scratch}/store", stacks[rank], rank, world_size, deadline, backend)
                started.append(context.Process(target=_rank, args=(*where, function, arguments), daemon=True))
                started[rank].start()
                theirs.close()  # so that the pipe ends with the process
                ranks[ours] = rank
            while ranks:
                ready = wait(list(ranks), timeout=max(0.0, latest_end - time.monotonic()))
                assert ready, f"{function.__name__}: ranks {sorted(ranks.values())} did not start within {START:.0f} s"
                for connection in ready:
                    rank = ranks.pop(connection)
                    try:
                        report = connection.recv_bytes()
                    except EOFError:
                        raise AssertionError(_obituary(function, rank, deadline, started, stacks)) from None
                    ok, value = _unpacked(report)
                    assert ok, f"rank {rank} of {world_size} failed in {function.__name__}:\n{value}"
                    results[rank] = value
        finally:
            for process in started:
                process.join(GRACE if len(results) == world_size else 0.0)
                process.kill()
                process.join()
    return [results[rank] for rank in range(world_size)]


def _obituary(
    function: Callable[..., Any], rank: int, deadline: float, processes: list[Any], stacks: list[Path]
) -> str:
    """Why a process ended without a report."""
    processes[rank].join(GRACE)
    if not stacks[rank].stat().st_size:
        return f"rank {rank} of {len(processes)} died in {function.__name__} with exit code {processes[rank].exitcode}"
    for process in processes:
        process.join(GRACE)  # its deadline is over as well
    texts = [f"rank {r}:\n{text}" for r, stack in enumerate(stacks) if (text := stack.read_text())]
    return f"{function.__name__}: not done after {deadline:.0f} s. Still running:\n" + "\n".join(texts)


def _packed(value: Any) -> bytes:
    """torch's own format: plain pickling would name modules of Megatron, which replaces how tensors are pickled."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)  # from a process of this very test


def _rank(
    report: Connection,
    store: str,
    stack: Path,
    rank: int,
    world_size: int,
    deadline: float,
    backend: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    gc.freeze()  # a million objects of imported modules, which each collection would look through in half a second
    timeout = timedelta(seconds=START + deadline)  # of one collective: the deadline below comes first, and says more
    with stack.open("w") as stack_file:
        try:
            if backend == "nccl":
                torch.cuda.set_device(rank)
            dist.init_process_group(backend, init_method=store, rank=rank, world_size=world_size, timeout=timeout)
            faulthandler.dump_traceback_later(deadline, exit=True, file=stack_file)
            answer = _packed((True, function(*arguments)))
            dist.barrier()  # nobody leaves while another still talks to it
        except BaseException:
            answer = _packed((False, traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
    # Reported before the connections to the other ranks break: what they say then is only a consequence.
    report.send_bytes(answer)
    report.close()
    if dist.is_initialized():
        dist.destroy_process_group()
