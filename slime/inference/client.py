"""GenerateClient: token ids in, token ids and log-probs out, through a router or straight from an engine.

Invariants
- What was sampled is what comes back: no text on the way, and one log-prob a token, checked.
- Refusals that pass (429, 502, 503, 504) and lost connections are tried again, with growing random pauses, until the
  request's deadline. Any other refusal, 400 above all, is raised at once and once, with the server's words.
- At most `max_samples` samples are under way; a request for n samples counts n times.
- A client belongs to the event loop that first uses it, and to one thread.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Self

import aiohttp
import numpy as np
import orjson

from slime.inference.errors import InferenceError, RequestError
from slime.inference.http import shown
from slime.inference.router import EXPERTS_LABEL, SESSION_HEADER

if TYPE_CHECKING:
    from slime.config import Config

log = logging.getLogger(__name__)

PASSING_STATUSES = frozenset({429, 502, 503, 504})
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
CONNECT_TIMEOUT_S = 10.0
WARN_EVERY_S = 30.0
KEEP_ALIVE_S = 4.0  # below the 5 s of a server with default settings, which would close one just being used
UNSENT_S = 0.1
WANTED: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)
"""Whether what the current task asks for is of use to anybody still."""
_LOG_PROB, _TOKEN = itemgetter(0), itemgetter(1)


@dataclass(slots=True)
class Generation:
    """One sample. `log_probs` are of the distribution at the sampling temperature, before top-p and top-k cut it.

    `weight_versions` are spans (version, number of tokens) in order: which weights made which tokens. `meta` is the
    engine's `meta_info` without the log-probs, for what has no field here. `routed_experts`, int32, has a row for each
    token of prompt and response but the last, all layers in it; None unless `return_routed_experts` was asked for.
    Times are in seconds, and None where the engine doesn't measure them (`queue_time` needs --sglang-enable-metrics).
    """

    tokens: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length", "abort"] | None
    weight_versions: list[tuple[str, int]]
    prompt_tokens: int
    cached_tokens: int
    e2e_latency: float | None
    queue_time: float | None
    meta: dict[str, Any] = field(repr=False)
    routed_experts: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, answer: dict[str, Any]) -> Self:
        """One object of the engine's answer, or of its stream while `finish_reason` is still None."""
        meta = answer["meta_info"]
        entries = meta.pop("output_token_logprobs", None) or []
        meta.pop("input_token_logprobs", None)
        experts = meta.pop("routed_experts", None)
        tokens = answer["output_ids"]
        if list(map(_TOKEN, entries)) != tokens:
            raise InferenceError(
                f"request {meta.get('id')}: the engine's log-probs are not of its {len(tokens)} tokens"
            )
        if tokens and (set(map(type, tokens)) != {int} or min(tokens) < 0):
            other = next(token for token in tokens if type(token) is not int or token < 0)
            raise InferenceError(f"request {meta.get('id')}: among the engine's tokens is {other!r}")
        return cls(
            tokens=tokens,
            log_probs=list(map(_LOG_PROB, entries)),
            finish_reason=(meta["finish_reason"] or {}).get("type"),
            weight_versions=[
                (span["version"], span["end"] - span["start"]) for span in meta.get("weight_versions") or []
            ],
            prompt_tokens=meta.get("prompt_tokens", 0),  # what was aborted before its turn in the engine has none
            cached_tokens=meta.get("cached_tokens", 0),
            e2e_latency=meta.get("e2e_latency"),
            queue_time=meta.get("queue_time"),
            meta=meta,
            routed_experts=None if experts is None else cls._rows(experts, meta["prompt_tokens"] + len(tokens) - 1),
        )

    @classmethod
    def unsent(cls) -> Self:
        """Of a request that nobody wanted any more when it was about to be sent."""
        return cls([], [], "abort", [], 0, 0, None, None, {"finish_reason": {"type": "abort"}})

    @staticmethod
    def _rows(encoded: str, rows: int) -> np.ndarray:
        return np.frombuffer(base64.b64decode(encoded), np.int32).reshape(rows, -1)


class GenerateClient:
    """`timeout` in seconds is a request's deadline, its repetitions included. `prefix_cache`: whether the engines have
    one. Where n samples are asked for, SGLang first computes their prompt alone, for them to find it there; without a
    cache that would be for nothing, and the prompt is sent n times in a request instead."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        max_samples: int = 512,
        timeout: float = 14400.0,
        prefix_cache: bool = True,
    ) -> None:
        self.url = url
        self.timeout = timeout
        self.max_samples = max_samples
        self.prefix_cache = prefix_cache
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._free = asyncio.Semaphore(max_samples)
        self._turn = asyncio.Lock()
        self._under_way = 0  # requests, those that wait for their turn included
        self._session: aiohttp.ClientSession | None = None
        self._warned = 0.0

    @classmethod
    def from_config(cls, config: Config, url: str, token: str | None = None, *, num_engines: int) -> Self:
        return cls(
            url,
            token,
            max_samples=config.sglang_server_concurrency * num_engines,
            timeout=config.sglang_router_request_timeout_secs,
            prefix_cache=not config.sglang.get("disable_radix_cache"),
        )

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        *,
        n: int = 1,
        seeds: Sequence[int] | None = None,
        session: str | None = None,
        **options: Any,
    ) -> list[Generation]:
        """n samples of one prompt, in one request.

        `sampling_params` and `options` are SGLang's (`rid`, `return_routed_experts` ...; `ignore_eos` ignores stop
        tokens, too). `session` keeps requests on one engine. `seeds`, one a sample, make sampling repeatable on an
        engine with --sglang-enable-deterministic-inference, which SGLang has on GPUs only; others ignore them. A
        request has one seed, so that each sample becomes a request then. WANTED is asked whenever the request is about
        to be sent: while it waits for its turn, or for another try, it may have become useless. It comes back empty
        then, with the finish reason "abort".

        Raises:
            RequestError: refused. InferenceError: not done by the deadline.
        """
        if seeds is not None:
            if len(seeds) != n:
                raise ValueError(f"{n} samples need {n} seeds, got {len(seeds)}")
            seeded = [{**sampling_params, "sampling_seed": seed} for seed in seeds]
            samples = [asyncio.ensure_future(self.generate(input_ids, p, session=session, **options)) for p in seeded]
            try:
                return [sample for (sample,) in await asyncio.gather(*samples)]
            finally:
                for sample in samples:
                    sample.cancel()  # those that are under way after another has failed
        if n == 1 or self.prefix_cache:
            body = self._body(input_ids, {**sampling_params, "n": n}, options)
        else:
            body = self._body([input_ids] * n, sampling_params, options)
        async with self._slots(n):
            content = await self._post(body, self._headers_of(session))
        if content is None:
            await asyncio.sleep(UNSENT_S)  # who asks again and again should not keep all others from their turn
            return [Generation.unsent() for _ in range(n)]
        try:
            answer = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise InferenceError(f"{self.url}: /generate answered with no JSON: {shown(content)}") from error
        answers = answer if isinstance(answer, list) else [answer]
        if len(answers) != n:
            raise InferenceError(f"{self.url}: asked for {n} samples, got {len(answers)}: {shown(content)}")
        generations = [self._whole(one, sampling_params.get("max_new_tokens")) for one in answers]
        if options.get("return_routed_experts"):
            self._check_experts(generations)
        return generations

    async def stream(
        self,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        *,
        session: str | None = None,
        **options: Any,
    ) -> AsyncIterator[Generation]:
        """One sample as it grows: each Generation holds all tokens so far; that of the last has a finish reason.

        Never tried again: what has been yielded could not be taken back. Raises as `generate`.
        """
        body = self._body(input_ids, sampling_params, {**options, "stream": True})
        try:
            async with self._slots(1), self._request(body, self._headers_of(session), self.timeout) as answer:
                if answer.status != 200:
                    raise self._refusal(answer.status, await answer.read())
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        event = orjson.loads(line[len(b"data: ") :])
                        if "error" in event:
                            raise self._refusal(event["error"].get("code", 400), line)
                        yield self._parsed(event)
        except aiohttp.ClientError as error:
            raise self._lost(error) from error
        except TimeoutError as error:
            raise InferenceError(f"{self.url}: /generate did not end within {self.timeout:g} s") from error

    async def answers(self, timeout: float) -> bool:
        """Whether the server says anything within `timeout` seconds."""
        limits = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._opened().get(f"{self.url}/health", headers=self._headers, timeout=limits):
                return True
        except (aiohttp.ClientError, TimeoutError):
            return False

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way, or waits for its turn."""
        return not self._under_way

    async def close(self) -> None:
        """Closes the connections; the next request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    def _body(input_ids: Sequence[Any], sampling_params: Mapping[str, Any], options: Mapping[str, Any]) -> bytes:
        body = {"return_logprob": True, **options, "input_ids": input_ids, "sampling_params": sampling_params}
        if options.get("return_routed_experts"):
            body["custom_labels"] = {**(options.get("custom_labels") or {}), EXPERTS_LABEL: "true"}
        return orjson.dumps(body)

    def _parsed(self, answer: Any) -> Generation:
        try:
            return Generation.parse(answer)
        except InferenceError as error:
            raise InferenceError(f"{self.url}: /generate: {error}") from error
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            what = f"answered with what is no sample ({type(error).__name__}: {error})"
            raise InferenceError(f"{self.url}: /generate {what}: {shown(orjson.dumps(answer))}") from error

    def _whole(self, answer: Any, limit: int | None) -> Generation:
        """A sample that is finished, with as many tokens as it may have."""
        generation = self._parsed(answer)
        where, count = f"{self.url}: /generate: request {generation.meta.get('id')}", len(generation.tokens)
        if generation.finish_reason is None:
            raise InferenceError(f"{where}: the engine has not finished it, nor said that it would not")
        if limit is not None and count > limit and generation.finish_reason != "abort":
            raise InferenceError(f"{where}: asked for {limit} tokens, the engine has sampled {count}")
        return generation

    def _check_experts(self, generations: Sequence[Generation]) -> None:
        if any(one.routed_experts is None and one.finish_reason != "abort" for one in generations):
            raise InferenceError(
                f"{self.url}: return_routed_experts was asked for, and the engine returned none: it has to be started"
                " by `python -m slime.inference.launch --enable-return-routed-experts ...`, and its model to be a"
                " mixture of experts"
            )

    def _headers_of(self, session: str | None) -> dict[str, str]:
        return self._headers if session is None else {**self._headers, SESSION_HEADER: session}

    @asynccontextmanager
    async def _slots(self, n: int) -> AsyncIterator[None]:
        """Holds n of the slots, or all if there are fewer. One request at a time collects, so that two never wait for
        each other."""
        taken = 0
        self._under_way += 1
        try:
            async with self._turn:
                while taken < min(n, self.max_samples):
                    await self._free.acquire()
                    taken += 1
            yield
        finally:
            self._under_way -= 1
            for _ in range(taken):
                self._free.release()

    def _request(self, body: bytes, headers: dict[str, str], timeout: float) -> Any:
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT_S)
        return self._opened().post(f"{self.url}/generate", data=body, headers=headers, timeout=limits)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=2**20)
        return self._session

    async def _post(self, body: bytes, headers: dict[str, str]) -> bytes | None:
        start = time.monotonic()
        deadline = start + self.timeout
        pause = FIRST_PAUSE_S
        failure: InferenceError | None = None
        while WANTED.get()():
            try:
                left = max(deadline - time.monotonic(), 0.001)  # a pause may end late, and 0 is no limit to aiohttp
                async with self._request(body, headers, left) as answer:
                    content = await answer.read()
                    if answer.status == 200:
                        return content
                    failure = self._refusal(answer.status, content)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
                failure = self._lost(error)
            except TimeoutError:
                before = f"; the try before: {failure}" if failure else ""
                raise InferenceError(
                    f"{self.url}: /generate did not answer within {self.timeout:g} s{before}"
                ) from failure
            if isinstance(failure, RequestError) and failure.status not in PASSING_STATUSES:
                raise failure
            pause = min(2 * pause, LONGEST_PAUSE_S)
            seconds = random.uniform(pause / 2, pause)
            if time.monotonic() + seconds > deadline:
                raise InferenceError(f"given up after {self.timeout:g} s, at last: {failure}") from failure
            self._warn(time.monotonic() - start, failure)
            await asyncio.sleep(seconds)
        return None

    def _warn(self, elapsed: float, failure: InferenceError) -> None:
        """Of requests that don't get through, one from time to time."""
        if elapsed > WARN_EVERY_S and time.monotonic() > self._warned + WARN_EVERY_S:
            self._warned = time.monotonic()
            log.warning(
                "a request has been tried again for %.0f s (it may for %g s): %s", elapsed, self.timeout, failure
            )

    def _lost(self, error: aiohttp.ClientError) -> InferenceError:
        return InferenceError(f"{self.url}: connection lost: {error or type(error).__name__}")

    def _refusal(self, status: int, content: bytes) -> RequestError:
        return RequestError(f"{self.url}: POST /generate: {status}: {shown(content)}", status)
