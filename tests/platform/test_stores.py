"""Stores listen where they are told to, and for torch's own rendezvous, too."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import psutil
import pytest
from torch import distributed as dist

from slime.platform import ports, stores

SOON = timedelta(seconds=10)


def listens_at(port: int) -> set[str]:
    sockets = psutil.Process().net_connections("tcp")
    return {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN and s.laddr.port == port}


@pytest.fixture
def free() -> Iterator[int]:
    with ports.reserve("127.0.0.1") as reserved:
        yield ports.number(reserved)


def test_a_store_listens_at_its_address_alone() -> None:
    store = stores.listening("127.0.0.1", 0, 1, SOON)
    assert listens_at(store.port) == {"127.0.0.1"}
    other = dist.TCPStore("127.0.0.1", store.port, 1, is_master=False, timeout=SOON)
    other.set("rank", "1")
    assert store.get("rank") == b"1"


def test_a_port_that_is_taken_is_said() -> None:
    store = stores.listening("127.0.0.1", 0, 1, SOON)
    with pytest.raises(OSError, match="Address already in use"):
        stores.listening("127.0.0.1", store.port, 1, SOON)


def test_in_torchs_rendezvous_rank_0_listens_and_others_come(free: int) -> None:
    meet = partial(stores.of_rendezvous, dist.rendezvous.__globals__["_create_c10d_store"], "127.0.0.1", free)
    with ThreadPoolExecutor() as pool:  # they wait for each other
        first, second = pool.map(lambda rank: meet(rank, 2, SOON, True), range(2))
    assert listens_at(free) == {"127.0.0.1"}
    first.set("who", "0")
    assert second.get("who") == b"0"
