"""What control calls make of answers: a stand-in answers in the place of an engine or a router."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from slime.inference import control as control_module
from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError, RequestError
from slime.inference.external import ExternalEngine
from slime.inference.router import ExternalRouter

Answer = Callable[[str], tuple[int, str]]
"""The status and text of an answer to a method."""


@pytest.fixture
def answers() -> Iterator[Callable[[Answer], str]]:
    """The address of a server that answers so."""
    answer: Answer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, text = answer(self.command)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def begin(with_: Answer) -> str:
        nonlocal answer
        answer = with_
        return f"127.0.0.1:{server.server_port}"

    yield begin
    server.shutdown()
    server.server_close()


@pytest.fixture
def says(answers: Callable[[Answer], str]) -> Callable[[str], str]:
    """The address of a server that says one thing, whatever it is asked."""
    return lambda text: answers(lambda _: (200, text))


CALLS: dict[str, Callable[[str], Any]] = {
    "GET /server_info": lambda address: EngineControl(f"http://{address}").server_info(),
    "GET /v1/loads": lambda address: EngineControl(f"http://{address}").loads(),
    "POST /weights_checker": lambda address: EngineControl(f"http://{address}").weights_checksum(),
    "GET /workers": lambda address: ExternalRouter(f"http://{address}").workers(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<html>hello</html>", "answered with no JSON: <html>hello</html>"),
        ('{"detail": "welcome"}', """answered without .*: {"detail": "welcome"}"""),
        ("[1]", r"answered without .*: \[1\]"),
    ],
)
def test_an_answer_that_is_of_something_else_is_shown(says, call: str, text: str, what: str) -> None:
    address = says(text)
    with pytest.raises(InferenceError, match=rf"at (http://)?{address}: {call}: {what}"):
        CALLS[call](address)


def test_an_address_of_another_service_is_waited_for_and_told(says) -> None:
    address = says("<html>hello</html>")
    with pytest.raises(InferenceError, match=f"engine 0 at {address} is not up after 0.1 s: .*no JSON: <html>hello"):
        ExternalEngine(address).wait_ready(0.1)
    with pytest.raises(InferenceError, match=f"router at {address}: GET /workers: answered with no JSON"):
        ExternalRouter(f"http://{address}").add_workers(["http://127.0.0.1:1"], 0.1)


def test_a_router_that_takes_an_engine_and_does_not_say_which(says) -> None:
    address = says('{"workers": []}')
    with pytest.raises(InferenceError, match="POST /workers: answered without worker_id"):
        ExternalRouter(f"http://{address}").add_workers(["http://127.0.0.1:1"], 0.1)


LISTED, GONE = '{"workers": [{"url": "http://e", "id": "7"}]}', '{"workers": []}'


def test_an_engine_that_the_router_takes_out_meanwhile_is_out(answers) -> None:
    """It does so in its own time: it may have listed it, and not know it any more."""
    lists = iter([LISTED, LISTED, GONE])
    statuses = iter([202, 404])
    asked: list[str] = []

    def answer(method: str) -> tuple[int, str]:
        asked.append(method)
        return (200, next(lists)) if method == "GET" else (next(statuses), "{}")

    ExternalRouter(f"http://{answers(answer)}").remove_worker("http://e", 10)
    assert asked == ["GET", "DELETE", "GET", "DELETE", "GET"]


def test_a_router_that_will_not_take_an_engine_out_is_told(answers) -> None:
    address = answers(lambda method: (200, LISTED) if method == "GET" else (403, "no"))
    with pytest.raises(RequestError, match="DELETE /workers/7: 403 Forbidden: no"):
        ExternalRouter(f"http://{address}").remove_worker("http://e", 10)
    address = answers(lambda method: (200, LISTED) if method == "GET" else (404, "{}"))
    with pytest.raises(InferenceError, match=r"still has the engine http://e after 0\.2 s"):
        ExternalRouter(f"http://{address}").remove_worker("http://e", 0.2)


def test_calls_that_read_all_weights_have_the_time_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: dict[str, float] = {}

    def exchange(method: str, url: str, path: str, body: Any = None, *, timeout: float, **_: Any) -> bytes:
        timeouts[path] = timeout
        return b'{"ranks": []}'

    monkeypatch.setattr("slime.inference.http.exchange", exchange)
    monkeypatch.setattr(control_module, "exchange", exchange)
    engine = EngineControl("http://127.0.0.1:1")
    engine.pause(), engine.update_weights_from_disk(model_path="somewhere"), engine.weights_checksum()
    assert timeouts == {"/pause_generation": 300, "/update_weights_from_disk": 900, "/weights_checker": 900}
