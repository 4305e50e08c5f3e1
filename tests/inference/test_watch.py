"""Watch: the death of a real process, one that was killed and one that hangs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from slime.inference.errors import InferenceError
from slime.inference.external import ExternalEngine
from slime.inference.http import exchange
from slime.inference.process import ServerProcess
from slime.inference.watch import Checks, Watch

START_S = 60.0


class Files(ServerProcess):
    """Python's own web server."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "http.server", "--bind", self.host, str(self.port)]

    def environment(self) -> Mapping[str, str | None]:
        return {}

    def is_healthy(self) -> bool:
        try:
            self.answer(1.0)
        except InferenceError:
            return False
        return True

    def answer(self, timeout: float) -> None:
        exchange("GET", self.url, "/", timeout=timeout)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Files]:
    with Files("files", host="127.0.0.1", port=None, log_path=tmp_path / "log") as server:
        server.wait_ready(START_S)
        yield server


def process(server: Files) -> psutil.Process:
    (found,) = psutil.Process(server.pid).children()
    return found


class Impostor(Files):
    """Says what an engine of two devices says of itself, as far as it is asked."""

    def command(self) -> list[str]:
        (self.log_path.parent / "server_info").write_text('{"tp_size": 2}')
        return [*super().command(), "--directory", str(self.log_path.parent)]


def test_an_engine_of_somebody_else_s_is_missed_and_waited_for(tmp_path):
    with Impostor("files", host="127.0.0.1", port=None, log_path=tmp_path / "log") as server:
        server.wait_ready(START_S)
        engine = ExternalEngine(f"127.0.0.1:{server.port}", index=3)
        engine.wait_ready(START_S)
        assert (engine.control.url, engine.control.num_devices, engine.control.index) == (server.url, 2, 3)
        watch = Watch(engine, engine.control.answer, None)
        engine.stop()
        assert engine.is_running, "it is not ours to stop"
        process(server).kill()
        assert watch.death().cause == "has ended, nobody listens at its address any more"
        with pytest.raises(InferenceError, match=r"engine 3 at 127.0.0.1:\d+ is not up after 0.1 s"):
            engine.restart(0.1)
        server._port_is_chosen = True
        server.restart(START_S)
        engine.wait_ready(START_S)
        assert engine.is_running and not engine.has_ended(0)


def test_a_killed_server_is_named_with_the_signal_and_comes_up_again(server):
    watch = Watch(server, server.answer, None)
    assert not server.has_ended(0)
    process(server).kill()
    death = watch.death()
    assert death.cause == "has ended, killed by SIGKILL"
    assert death.log_tail.startswith(f"\nThe last lines of {server.log_path}:\n")
    assert server.has_ended(0)
    server.restart(START_S)
    assert server.is_healthy()


def test_a_server_that_hangs_is_killed_when_it_has_not_answered_in_time(server):
    watch = Watch(server, server.answer, Checks(interval=0.1, timeout=1.0))
    watch.server_is_up()
    hanging = process(server)
    hanging.send_signal(signal.SIGSTOP)
    assert watch.death().cause == "had not answered for 1 s, and was killed"
    assert not hanging.is_running()


def test_nobody_is_asked_before_it_is_up_or_its_first_wait_is_over(server):
    asked = []
    watch = Watch(server, asked.append, Checks(interval=0.1, timeout=1.0, first_wait=3600.0))
    process(server).kill()
    assert watch.death() is not None and asked == []
    watch = Watch(server, asked.append, Checks(interval=0.1, timeout=1.0))
    assert watch.death() is not None and asked == []


def test_the_end_of_a_server_that_is_stopped_is_no_death(server):
    watch = Watch(server, server.answer, None)
    watch.stop()
    server.stop()
    assert watch.death() is None
