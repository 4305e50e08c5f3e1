"""Ports that the system chooses, for servers of ours that listen later or in another process."""

from __future__ import annotations

import socket


def reserve(host: str, port: int = 0) -> socket.socket:
    """A socket that holds `port` of `host`, or one that is free, until it is closed; `number(it)` is the port.

    It is bound and doesn't listen: the system gives its port to nobody, neither to who asks for any nor to a
    connection, while a server that asks for just this one, with SO_REUSEADDR as servers do, can listen there.

    Raises:
        OSError: the port is taken, or the host isn't this machine.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved


def number(reserved: socket.socket) -> int:
    return reserved.getsockname()[1]
