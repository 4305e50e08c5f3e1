"""A real engine behind a real router: what comes back is what the model says."""

from __future__ import annotations

import asyncio
import random

import pytest

from slime.inference.client import GenerateClient, Generation
from slime.inference.errors import RequestError
from slime.inference.server import EngineServer
from tests.inference.conftest import Run
from tests.inference.hf import Reference

TOLERANCE = 5e-6
MANY = 440  # as many as the context has room for, so that there is time to come between
LONG = {"max_new_tokens": MANY, "ignore_eos": True}


def prompts(count: int, seed: int, shortest: int = 1, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 60) for _ in range(rng.randint(shortest, longest))] for _ in range(count)]


def check(reference: Reference, prompt: list[int], generation: Generation, temperature: float = 1.0) -> None:
    expected = reference.log_probs(prompt, generation.tokens, temperature)
    assert generation.log_probs == pytest.approx(expected, abs=TOLERANCE)


def test_greedy_tokens_and_log_probs_equal_hf(client: GenerateClient, reference: Reference, run: Run) -> None:
    prompt = prompts(1, seed=0)[0]
    (generation,) = run(client.generate(prompt, {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}))
    assert generation.tokens == reference.greedy(prompt, 24)
    assert generation.finish_reason == "length"
    assert generation.prompt_tokens == len(prompt)
    check(reference, prompt, generation)


def test_log_probs_equal_hf_in_a_batch_of_mixed_lengths(client: GenerateClient, reference: Reference, run: Run) -> None:
    """Requests that start and end at different times share padded attention calls."""

    async def all_at_once() -> list[list[Generation]]:
        asked = enumerate(prompts(24, seed=1))
        return await asyncio.gather(
            *(client.generate(p, {"max_new_tokens": 2 + 3 * i, "ignore_eos": True}) for i, p in asked)
        )

    for prompt, (generation,) in zip(prompts(24, seed=1), run(all_at_once()), strict=True):
        check(reference, prompt, generation)


def test_log_probs_equal_hf_after_hits_of_the_prefix_cache(
    client: GenerateClient, reference: Reference, run: Run
) -> None:
    prefix, *tails = prompts(4, seed=2, shortest=20)
    run(client.generate(prefix, {"max_new_tokens": 1}))
    for tail in tails:
        (generation,) = run(client.generate(prefix + tail, {"max_new_tokens": 8, "ignore_eos": True}))
        assert generation.cached_tokens >= len(prefix)
        check(reference, prefix + tail, generation)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_n_samples_in_one_request_differ_and_each_has_its_log_probs(
    client: GenerateClient, reference: Reference, run: Run, monkeypatch: pytest.MonkeyPatch, prefix_cache: bool
) -> None:
    monkeypatch.setattr(client, "prefix_cache", prefix_cache)
    prompt = prompts(1, seed=3)[0]
    generations = run(client.generate(prompt, {"max_new_tokens": 16, "ignore_eos": True}, n=8))
    assert len({tuple(generation.tokens) for generation in generations}) == 8
    for generation in generations:
        check(reference, prompt, generation)


def test_log_probs_are_of_the_distribution_at_the_sampling_temperature(
    client: GenerateClient, reference: Reference, run: Run
) -> None:
    prompt = prompts(1, seed=4)[0]
    params = {"temperature": 0.6, "top_p": 0.8, "max_new_tokens": 16, "ignore_eos": True}
    (generation,) = run(client.generate(prompt, params))
    check(reference, prompt, generation, temperature=0.6)


def test_a_stop_token_ends_a_sample(client: GenerateClient, reference: Reference, run: Run) -> None:
    prompt = prompts(1, seed=5)[0]
    greedy = reference.greedy(prompt, 12)
    stop = greedy[-1]
    params = {"temperature": 0, "max_new_tokens": 40, "stop_token_ids": [stop]}
    (generation,) = run(client.generate(prompt, params))
    assert generation.finish_reason == "stop"
    assert generation.tokens == greedy[: greedy.index(stop) + 1]


def test_a_stream_grows_to_the_whole_sample(client: GenerateClient, reference: Reference, run: Run) -> None:
    prompt = prompts(1, seed=7)[0]

    async def collect() -> list[Generation]:
        return [
            part async for part in client.stream(prompt, {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True})
        ]

    parts = run(collect())
    greedy = reference.greedy(prompt, 10)
    assert all(part.tokens == greedy[: len(part.tokens)] for part in parts)
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    check(reference, prompt, parts[-1])


def test_a_refused_request_raises_once_with_the_engines_words(client: GenerateClient, run: Run) -> None:
    with pytest.raises(RequestError, match="temperature must be a non-negative finite number") as caught:
        run(client.generate([5], {"temperature": -1}))
    assert caught.value.status == 400
    with pytest.raises(RequestError, match="longer than the model's context length"):
        run(client.generate([5] * 1000, {}))


def test_abort_returns_partial_samples(
    client: GenerateClient, engine: EngineServer, reference: Reference, run: Run
) -> None:
    prompt = prompts(1, seed=8)[0]

    async def abort_midway() -> list[Generation]:
        request = asyncio.create_task(client.generate(prompt, LONG, n=4))
        await until_generating(engine)
        await asyncio.to_thread(engine.control.abort)
        return await request

    generations = run(abort_midway())
    assert len(generations) == 4
    for generation in generations:
        assert generation.finish_reason == "abort"
        assert 0 < len(generation.tokens) < MANY
        check(reference, prompt, generation)


def test_abort_ends_what_waits_for_its_turn_in_the_engine(
    client: GenerateClient, engine: EngineServer, run: Run
) -> None:
    """It runs 256 at once."""

    async def abort_some_that_wait() -> list[Generation]:
        request = asyncio.create_task(client.generate(prompts(1, seed=10)[0], LONG, n=280))
        async with asyncio.timeout(60):
            while not any(load["num_waiting_reqs"] for load in await asyncio.to_thread(engine.control.loads)):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.control.abort)
        return await request

    generations = run(abort_some_that_wait())
    assert {generation.finish_reason for generation in generations} == {"abort"}
    begun = [bool(generation.tokens) for generation in generations]
    assert len(begun) == 280 and 0 < sum(begun) < 280


def test_a_request_paused_in_place_goes_on_where_it_was(
    client: GenerateClient, engine: EngineServer, reference: Reference, run: Run
) -> None:
    prompt = prompts(1, seed=9)[0]

    async def pause_midway() -> Generation:
        request = asyncio.create_task(client.generate(prompt, {"temperature": 0, **LONG}))
        await until_generating(engine)
        await asyncio.to_thread(engine.control.pause, "in_place")
        await asyncio.to_thread(engine.control.health)
        await asyncio.sleep(0.3)
        assert not request.done()
        await asyncio.to_thread(engine.control.resume)
        return (await request)[0]

    generation = run(pause_midway())
    assert len(generation.tokens) == MANY
    check(reference, prompt, generation)


async def until_generating(engine: EngineServer) -> None:
    """Returns when a request has some tokens of a response: of a prompt there are at most 40."""
    async with asyncio.timeout(60):
        while not any(load["num_used_tokens"] > 60 for load in await asyncio.to_thread(engine.control.loads)):
            await asyncio.sleep(0.01)
