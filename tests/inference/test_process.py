"""Starting, watching and ending a server; the router stands for all, since it starts fast."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from slime.inference.errors import InferenceError, RequestError
from slime.inference.router import ExternalRouter, Router
from slime.inference.server import EngineServer

START_TIMEOUT_S = 120.0
TOKEN = "very-secret"


def family(router: Router) -> list[psutil.Process]:
    supervisor = psutil.Process(router.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def until(condition: Callable[[], bool], what: str, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "router.log"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A running router with a token."""
    with Router(log_path=tmp_path_factory.mktemp("secured") / "router.log", token=TOKEN) as router:
        router.wait_ready(START_TIMEOUT_S)
        yield router


def test_stop_leaves_no_process(log: Path) -> None:
    router = Router(log_path=log)
    router.start()
    router.wait_ready(START_TIMEOUT_S)
    assert router.is_running
    processes = family(router)
    assert len(processes) > 1
    router.stop()
    assert not router.is_running
    assert not any(process.is_running() for process in processes)
    router.stop()


def test_it_listens_on_loopback_only(secured: Router) -> None:
    sockets = [s for p in family(secured) for s in p.net_connections("tcp") if s.status == psutil.CONN_LISTEN]
    assert len(sockets) >= 2  # requests and metrics
    assert {s.laddr.ip for s in sockets} == {"127.0.0.1"}


def test_an_engine_listens_on_loopback_only(engine: EngineServer) -> None:
    """The store at which its ranks meet, too."""
    sockets = [s for p in family(engine) for s in p.net_connections("tcp") if s.status == psutil.CONN_LISTEN]
    assert len(sockets) >= 2  # requests, and that store
    assert {s.laddr.ip for s in sockets} == {"127.0.0.1"}


def test_a_token_is_asked_for_and_on_no_command_line(secured: Router) -> None:
    assert secured.workers() == []
    with pytest.raises(RequestError, match="401"):
        ExternalRouter(secured.url, "wrong").workers()
    assert not any(TOKEN in word for process in family(secured) for word in process.cmdline())


def test_a_server_that_ends_early_is_reported_with_the_end_of_its_log(log: Path) -> None:
    with Router(log_path=log, options={"policy": "no-such-policy"}) as router:
        with pytest.raises(
            InferenceError,
            match=r"(?s)router did not start: error: argument --policy: invalid.*\(its log: .*no-such-policy",
        ):
            router.wait_ready(START_TIMEOUT_S)


def test_a_server_that_takes_too_long_is_reported(log: Path) -> None:
    with Router(log_path=log) as router:
        with pytest.raises(InferenceError, match=r"router is not up after 0 s\."):
            router.wait_ready(0)


@pytest.mark.parametrize(
    ("written", "tail"), [("", ""), ("\n 50% of it\n", ""), ("a\nb\n", "\nThe last lines of {log}:\n    a\n    b")]
)
def test_the_end_of_a_log_is_shown_if_it_says_anything(log: Path, written: str, tail: str) -> None:
    log.parent.mkdir()
    log.write_text(written)
    assert Router(log_path=log).log_tail() == tail.format(log=log)


def test_a_port_that_the_user_chose_and_that_is_taken_is_an_error_at_start(log: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        router = Router(log_path=log, port=port)
        with pytest.raises(InferenceError, match=f"cannot listen on port {port} .*choose another"):
            router.start()
        assert not router.is_running


class Thief:
    """Listens on a server's port before the server does, and answers its health check in its place."""

    def __init__(self, port: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)  # with SO_REUSEADDR
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_port_taken_before_the_server_could_bind_it_is_replaced(log: Path, secured: Router) -> None:
    with Router(log_path=log) as router:
        first = router.port
        assert first != secured.port
        thief = Thief(first)
        router.wait_ready(START_TIMEOUT_S)
        thief.close()
        assert router.port != first
        assert router.workers() == []


def test_a_chosen_port_taken_before_the_server_could_bind_it_is_an_error(log: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Router(log_path=log, port=port) as router:
        thief = Thief(port)
        with pytest.raises(InferenceError, match=f"port {port} of 127.0.0.1 was taken meanwhile"):
            router.wait_ready(START_TIMEOUT_S)
        thief.close()


def test_an_address_that_nobody_can_reach_is_refused(log: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.0\.0\.0.*name the machine's own"):
        Router(log_path=log, host="0.0.0.0")


def test_what_listens_beyond_loopback_has_a_token(tmp_path: Path) -> None:
    assert EngineServer("model", log_path=tmp_path / "log").token is None
    first, second = (EngineServer("model", log_path=tmp_path / "log", host="192.0.2.1").token for _ in range(2))
    assert first and second and first != second


STARTER = """
import sys, time
from pathlib import Path
from slime.inference.router import ExternalRouter, Router
router = Router(log_path=Path(sys.argv[1]))
router.start()
router.wait_ready(120)
print(router.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["starter", "supervisor"])
def test_killed_without_warning_no_process_of_the_server_is_left(log: Path, victim: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ".", "TMPDIR": str(tmp_path)}
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(log)], stdout=subprocess.PIPE, env=environment)
    supervisor = psutil.Process(int(starter.stdout.readline()))
    processes = [supervisor, *supervisor.children(recursive=True)]
    os.kill(starter.pid if victim == "starter" else supervisor.pid, signal.SIGKILL)
    until(
        lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes),
        "the router has ended",
    )
    starter.kill()
    starter.wait()
