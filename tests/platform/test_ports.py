import errno
import socket

import pytest

from slime.platform import ports


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_held_port_is_for_the_server_that_asks_for_it_alone(host):
    try:
        held = ports.reserve(host)
    except OSError as error:
        assert (host, error.errno) == ("::1", errno.EADDRNOTAVAIL), "a machine without IPv6"
        return
    with held, socket.socket(held.family) as other:
        with pytest.raises(OSError, match="in use"):
            other.bind((host, ports.number(held)))
        with socket.create_server((host, ports.number(held)), family=held.family) as server:
            with socket.create_connection((host, ports.number(held)), timeout=5):
                server.accept()[0].close()


def test_a_port_where_somebody_listens_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        ports.reserve("127.0.0.1", server.getsockname()[1])
