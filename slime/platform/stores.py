"""Where the ranks of a group meet: torch's TCPStore, which hears anybody who reaches it, at one address alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import distributed as dist


def listening(address: str, port: int, world_size: int, timeout: timedelta, **options: Any) -> dist.TCPStore:
    """The store of rank 0, at this address; its own socket would listen on all interfaces. Port 0: one that is free.

    Raises OSError: the port is taken, or the address isn't this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=max(world_size, 16))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        address, port, world_size, is_master=True, timeout=timeout, master_listen_fd=listener.detach(), **options
    )


def is_torchruns() -> bool:
    """Whether torchrun listens where the ranks are to meet."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def of_rendezvous(
    original: Callable[..., dist.Store],
    hostname: str,
    port: int,
    rank: int,
    world_size: int,
    timeout: timedelta,
    *args: Any,
    **kwargs: Any,
) -> dist.Store:
    """In the place of torch's function, of this signature, for `tcp://HOST:PORT` and the like."""
    if rank == 0 and not is_torchruns():
        return listening(hostname, port, world_size, timeout)
    return original(hostname, port, rank, world_size, timeout, *args, **kwargs)
