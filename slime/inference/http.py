"""One synchronous exchange over HTTP/1.1, on a connection of its own, so that any thread may make it.

No proxy is ever used, whatever the environment says: the servers are the run's own.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from slime.inference.errors import InferenceError, RequestError


def exchange(
    method: str,
    url: str,
    path: str,
    body: Any = None,
    *,
    timeout: float,
    token: str | None = None,
    server: str = "server",
) -> bytes:
    """Sends `body` as JSON and returns the body of the answer.

    `timeout` is in seconds, for connecting and then for each silence of the server, whose answers to control calls come
    in one piece. `server` is what messages call it.

    Raises:
        RequestError: the status is not 2xx; the message carries the body of the answer. InferenceError: there was no
        answer: connection refused or lost, or the time is up.
    """
    address = urlsplit(url)
    asked = _asked(method, url, path, server)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection = HTTPConnection(address.hostname, address.port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        content = answer.read()
    except TimeoutError as error:
        raise InferenceError(f"{asked}: no answer within {timeout:g} s") from error
    except (OSError, HTTPException) as error:
        raise InferenceError(f"{asked}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise RequestError(f"{asked}: {answer.status} {answer.reason}: {shown(content)}", answer.status)
    return content


def ask(
    method: str,
    url: str,
    path: str,
    body: Any = None,
    *,
    needs: str | None = None,
    timeout: float,
    token: str | None = None,
    server: str = "server",
) -> Any:
    """As `exchange`, of an answer in JSON: with `needs`, an object that has this key.

    Raises, further:
        InferenceError: the answer is of something else. The server may be another than it was taken for.
    """
    content = exchange(method, url, path, body, timeout=timeout, token=token, server=server)
    asked = _asked(method, url, path, server)
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise InferenceError(f"{asked}: answered with no JSON: {shown(content)}") from error
    if needs is not None and not (isinstance(answer, dict) and needs in answer):
        raise InferenceError(f"{asked}: answered without {needs}: {shown(content)}")
    return answer


def _asked(method: str, url: str, path: str, server: str) -> str:
    """Who was asked for what, as messages call it."""
    whom = server if urlsplit(url).netloc in server else f"{server} at {url}"
    return f"{whom}: {method} {path}"


def shown(content: bytes, limit: int = 2000) -> str:
    """An answer's body for a message."""
    text = content.decode(errors="replace").strip()
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text)} characters)"
