"""Watch: the death of a real process, one that was killed and one that hangs."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import psutil
import pytest

from slime.inference.errors import InferenceError
from slime.inference.external import ExternalEngine
from slime.inference.http import exchange
from slime.inference.process import ServerProcess
from slime.inference.watch import Checks, Watch

START_S = 60.0
SILENCE_S = 2.0


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


class Impostor:
    """Says what an engine of two devices says of itself, as far as it is asked. `health` are its answers to that, one
    after the other, the last for ever; 0 is none for a while."""

    def __init__(self, *health: int, **info: object) -> None:
        answers = [*health]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status = 200
                if self.path == "/health":
                    status = answers.pop(0) if len(answers) > 1 else answers[0]
                if status:
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(json.dumps({"tp_size": 2} | info).encode())
                else:
                    time.sleep(SILENCE_S)

            def log_message(self, *_: object) -> None:
                pass

        self.answers = answers
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_an_engine_of_somebody_else_s_is_missed_and_waited_for():
    with Impostor(200) as first:
        engine = ExternalEngine(first.address, index=3)
        engine.wait_ready(START_S)
        known = (engine.control.url, engine.control.num_devices, engine.control.index)
        assert known == (f"http://{first.address}", 2, 3)
        watch = Watch(engine, engine.control.answer, None)
        watch.server_is_up()
        engine.stop()
        assert engine.is_running, "it is not ours to stop"
    with pytest.raises(InferenceError, match=r"engine 3 at .* With --use-fault-tolerance the run waits up to 30 min"):
        watch.death_if_mended()
    assert watch.death().cause == "has ended, nobody listens at its address any more"
    assert watch.death().what_then == "the run waits up to 30 min until you have started it again"
    with pytest.raises(InferenceError, match=r"engine 3 at 127.0.0.1:\d+ is not up after 0.1 s"):
        engine.restart(0.1)


def test_an_engine_of_somebody_else_s_is_up_when_it_has_warmed_up():
    """Before it says what it is, and has no place in a process group for weights."""
    with Impostor(503, 503, 200) as server:
        engine = ExternalEngine(server.address)
        engine.wait_ready(START_S)
        assert server.answers == [200] and engine.is_running
        before = engine.control
        engine.restart(START_S)
        assert engine.control != before, "it knows none of the process groups of before, and must not be taken for it"
    with Impostor(503) as server, pytest.raises(InferenceError, match=r"is not up after 0.1 s: .*/health: 503"):
        ExternalEngine(server.address).wait_ready(0.1)


def test_an_engine_of_somebody_else_s_that_is_paused_is_up(monkeypatch):
    """A run that was killed may have left it so."""
    monkeypatch.setattr("slime.inference.control.HEALTH_S", SILENCE_S / 2)
    with Impostor(0) as server:
        ExternalEngine(server.address).wait_ready(START_S)


def test_an_engine_of_somebody_else_s_that_knows_no_texts_is_refused_when_they_are_needed():
    with Impostor(503, skip_tokenizer_init=True) as server:
        said = "was started with --skip-tokenizer-init, and --rollout-stop needs its tokenizer: start it without"
        with pytest.raises(InferenceError, match=f"engine 0 at {server.address} {said}"):
            ExternalEngine(server.address, needs_texts="--rollout-stop").wait_ready(START_S)


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


class Broken(Files):
    """Raises before it is up, as SGLang does: in a process of its own, whereupon all of it is killed."""

    def command(self) -> list[str]:
        raises = "import os, multiprocessing\ndef work():\n  assert 3 % 2 == 0, 'must be divisible'\n"
        dies = "p = multiprocessing.Process(target=work); p.start(); p.join(); print('a child failed')\n"
        return [sys.executable, "-c", f"{raises}{dies}os.kill(os.getpid(), 9)"]


@pytest.mark.parametrize("checks", [None, Checks(interval=0.1, timeout=1.0)])
def test_a_server_that_never_came_up_is_told_with_what_it_raised(tmp_path, checks):
    with Broken("broken", host="127.0.0.1", port=None, log_path=tmp_path / "log") as server:
        watch = Watch(server, server.answer, checks)
        log = re.escape(str(tmp_path / "log"))
        said = rf"broken did not start: AssertionError: must be divisible \(its log: {log}\)\nThe last lines of "
        with pytest.raises(InferenceError, match=said):
            watch.death_if_mended() if checks is None else server.wait_ready(START_S)
        server.log_path.write_text("")
        assert str(server.start_failure()).startswith("broken did not start: it has ended, killed by SIGKILL (its log")
