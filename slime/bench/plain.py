"""PlainClient: what a user writes to drive an engine without a framework. The bare side of the rollout bench."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp


class PlainClient:
    """Straight to one engine, all requests at once."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.runner = asyncio.Runner()
        self.session: aiohttp.ClientSession | None = None

    def sample(self, prompts: Sequence[list[int]], params: dict[str, Any]) -> list[list[tuple[int, float]]]:
        """For each prompt the samples that `params` ask for: (number of tokens, time of arrival on
        time.perf_counter)."""
        return self.runner.run(self._sample(prompts, params))

    def first_token(self, prompt: list[int], params: dict[str, Any]) -> float:
        """Seconds until the first token of a streamed sample."""
        return self.runner.run(self._first_token(prompt, params))

    def close(self) -> None:
        if self.session is not None:
            self.runner.run(self.session.close())
        self.runner.close()

    def _post(self, body: dict[str, Any]) -> Any:
        if self.session is None:
            limits = aiohttp.ClientTimeout(total=None)
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits)
        return self.session.post(f"{self.url}/generate", json=body, headers=self.headers)

    async def _sample(self, prompts: Sequence[list[int]], params: dict[str, Any]) -> list[list[tuple[int, float]]]:
        return await asyncio.gather(*(self._request(prompt, params) for prompt in prompts))

    async def _request(self, prompt: list[int], params: dict[str, Any]) -> list[tuple[int, float]]:
        async with self._post({"input_ids": prompt, "sampling_params": params, "return_logprob": True}) as answer:
            answer.raise_for_status()
            samples = await answer.json()
        arrived = time.perf_counter()
        samples = samples if isinstance(samples, list) else [samples]
        return [(len(sample["meta_info"]["output_token_logprobs"]), arrived) for sample in samples]

    async def _first_token(self, prompt: list[int], params: dict[str, Any]) -> float:
        start = time.perf_counter()
        first = None
        body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True, "stream": True}
        async with self._post(body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if first is None and line.startswith(b"data: {") and json.loads(line[6:])["output_ids"]:
                    first = time.perf_counter() - start
        if first is None:
            raise RuntimeError(f"{self.url}: a streamed sample ended without a token")
        return first
