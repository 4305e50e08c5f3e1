"""Asking a reward service over HTTP: JSON to it, JSON back.

Held: 429, 5xx and lost connections are tried again, backing off, until --rm-timeout; any other status, a redirection
too, fails at once, with the service's words; no proxy is used but --http-proxy; an answer is bounded in size.
"""

from __future__ import annotations

import asyncio
import json
import random
import weakref
from typing import Any

import aiohttp

from slime.rewards.errors import RewardError, RewardFailure

AT_ONCE = 128
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0  # seconds
CONNECT_S = 30  # then the next try; how long an answer may take, only --rm-timeout says
MOST_BYTES = 16 << 20

_at_once: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


class _TooLong(Exception):
    pass


async def ask(args: Any, name: str, path: str, body: dict[str, Any]) -> Any:
    """What the service of a run answers at `path` about the sample called `name`: the router of --rm-model, else
    --rm-url. Raises RewardFailure."""
    base, headers, proxy = args.rm_url, {}, args.http_proxy
    if args.rm_model:
        host, port = args.sglang_model_routers[args.rm_model]
        base, proxy = f"http://{host}:{port}", None
        headers = {"Authorization": f"Bearer {args.sglang_router_token}"} if args.sglang_router_token else {}
    if not base:
        raise RewardError(f"{name}: a reward service is asked, but where is it? Give --rm-url")
    url = base.rstrip("/") + path if path else base
    limit = _at_once.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    wait, last = FIRST_WAIT, "no answer"
    try:
        async with (
            limit,
            asyncio.timeout(args.rm_timeout),
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
        ):
            while True:
                try:
                    async with session.post(url, json=body, proxy=proxy, allow_redirects=False) as answer:
                        content = await _read(answer)
                except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
                    address = f"--rm-url {base}" + (f" or --http-proxy {proxy}" if proxy else "")
                    raise RewardError(f"{name}: {address} is no address; write it as http://host:port") from None
                except (aiohttp.ClientError, OSError) as error:
                    last = str(error) or type(error).__name__
                except _TooLong as error:
                    raise RewardFailure(name, f"reward service {url}: {error}") from error
                else:
                    if 200 <= answer.status < 300:
                        return _parsed(content, name, url)
                    words = " ".join(content[:500].decode(errors="replace").split())
                    last = f"{answer.status} {answer.reason}: {words}"
                    if answer.status != 429 and answer.status < 500:
                        raise RewardFailure(name, f"reward service {url}: {last}")
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, LONGEST_WAIT)
    except TimeoutError as error:
        raise RewardFailure(
            name, f"reward service {url}: no reward within {args.rm_timeout:g} s (--rm-timeout); last: {last}"
        ) from error


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        content += chunk
        if len(content) > MOST_BYTES:
            raise _TooLong(f"its answer has more than {MOST_BYTES >> 20} MiB")
    return bytes(content)


def _parsed(content: bytes, name: str, url: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise RewardFailure(name, f"reward service {url}: its answer is no JSON: {error}") from error
