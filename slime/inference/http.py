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
    whom = server if address.netloc in server else f"{server} at {url}"
    asked = f"{whom}: {method} {path}"
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


def shown(content: bytes, limit: int = 2000) -> str:
    """An answer's body for a message."""
    text = content.decode(errors="replace").strip()
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text)} characters)"
