"""What the client does with an engine's refusals: a small real server answers in the engine's place."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from slime.inference import client as client_module
from slime.inference.client import GenerateClient, Generation
from slime.inference.errors import InferenceError, RequestError
from slime.inference.router import SESSION_HEADER
from tests.inference.conftest import Run
from tests.inference.stand_in import StandIn

ANSWER = {
    "output_ids": [7, 8, 9],
    "meta_info": {
        "id": "a",
        "finish_reason": {"type": "stop", "matched": 9},
        "prompt_tokens": 2,
        "cached_tokens": 1,
        "weight_version": "4",
        "weight_versions": [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}],
        "output_token_logprobs": [[-0.5, 7, None], [-1.5, 8, None], [-0.25, 9, None]],
        "e2e_latency": 0.5,
    },
}


def ok(n: int = 1) -> web.Response:
    return web.json_response(ANSWER if n == 1 else [ANSWER] * n)


def ask(
    run: Run,
    server: StandIn,
    *,
    timeout: float = 30,
    token: str | None = None,
    prefix_cache: bool = True,
    params: dict[str, Any] | None = None,
    **arguments: Any,
) -> list[Generation]:
    async def one() -> list[Generation]:
        client = GenerateClient("", token, timeout=timeout, prefix_cache=prefix_cache)
        async with server.serve() as client.url, client:
            return await client.generate([1, 2], {"temperature": 1.0} | (params or {}), **arguments)

    return run(one())


def test_an_answer_becomes_plain_lists(run: Run) -> None:
    (generation,) = ask(run, StandIn(lambda _: ok()))
    assert generation.tokens == [7, 8, 9]
    assert generation.log_probs == [-0.5, -1.5, -0.25]
    assert generation.finish_reason == "stop"
    assert generation.weight_versions == [("3", 2), ("4", 1)]
    assert (generation.prompt_tokens, generation.cached_tokens) == (2, 1)
    assert (generation.e2e_latency, generation.queue_time) == (0.5, None)
    assert generation.meta["weight_version"] == "4"


def test_the_request_carries_n_the_token_and_the_session(run: Run) -> None:
    server = StandIn(lambda _: ok(8))
    ask(run, server, token="secret", n=8, session="game-3", rid="r")
    expected = {
        "input_ids": [1, 2],
        "sampling_params": {"temperature": 1.0, "n": 8},
        "return_logprob": True,
        "rid": "r",
    }
    assert server.bodies == [expected]
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.headers[0][SESSION_HEADER] == "game-3"


def test_without_a_prefix_cache_the_prompt_is_sent_n_times(run: Run) -> None:
    server = StandIn(lambda _: ok(3))
    assert len(ask(run, server, n=3, prefix_cache=False)) == 3
    assert server.bodies == [
        {"input_ids": [[1, 2]] * 3, "sampling_params": {"temperature": 1.0}, "return_logprob": True}
    ]


def test_an_answer_that_is_none_is_shown(run: Run) -> None:
    with pytest.raises(InferenceError, match=r"^http://127.0.0.1:\d+: /generate answered with no JSON: <html>moved"):
        ask(run, StandIn(lambda _: web.Response(text="<html>moved</html>")))


def test_routed_experts_that_the_engine_does_not_return_are_missed(run: Run) -> None:
    """Not of a request that was ended: it may not have been begun."""
    with pytest.raises(
        InferenceError, match=r"return_routed_experts .* slime\.inference\.launch --enable-return-routed"
    ):
        ask(run, StandIn(lambda _: ok()), return_routed_experts=True)
    ended = ANSWER | {"meta_info": ANSWER["meta_info"] | {"finish_reason": {"type": "abort"}}}
    (generation,) = ask(run, StandIn(lambda _: web.json_response(ended)), return_routed_experts=True)
    assert generation.routed_experts is None


def test_each_seed_is_a_request(run: Run) -> None:
    server = StandIn(lambda _: ok())
    assert len(ask(run, server, n=3, seeds=[10, 11, 12])) == 3
    assert sorted(body["sampling_params"]["sampling_seed"] for body in server.bodies) == [10, 11, 12]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_refusals_that_pass_are_tried_again(run: Run, status: int) -> None:
    server = StandIn(lambda k: ok() if k == 2 else web.Response(status=status))
    assert ask(run, server)[0].tokens == [7, 8, 9]
    assert len(server.bodies) == 3


def test_a_lost_connection_is_tried_again(run: Run) -> None:
    server = StandIn(lambda k: ok() if k == 2 else None)
    assert ask(run, server)[0].tokens == [7, 8, 9]
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_other_refusals_are_raised_at_once_with_the_body(run: Run, status: int) -> None:
    server = StandIn(lambda _: web.Response(status=status, text="the reason"))
    with pytest.raises(RequestError, match=f"{status}: the reason") as caught:
        ask(run, server)
    assert caught.value.status == status
    assert len(server.bodies) == 1


def test_the_deadline_ends_the_tries_and_tells_the_last_refusal(run: Run) -> None:
    server = StandIn(lambda _: web.Response(status=503, text="no workers"))
    with pytest.raises(InferenceError, match=r"given up after 1 s, at last: .*503: no workers"):
        ask(run, server, timeout=1)
    assert len(server.bodies) > 1


def test_a_request_that_does_not_get_through_is_talked_about(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "WARN_EVERY_S", 0.1)
    ask(run, StandIn(lambda k: ok() if k == 3 else web.Response(status=503, text="no workers")))
    assert "a request has been tried again for 0 s (it may for 30 s)" in caplog.text
    assert "503: no workers" in caplog.text


def test_nobody_listening_is_given_up_at_the_deadline(run: Run) -> None:
    async def ask_nobody() -> None:
        async with GenerateClient("http://127.0.0.1:1", timeout=1) as client:
            await client.generate([1], {})

    with pytest.raises(InferenceError, match=r"given up after 1 s, at last: .*connection lost"):
        run(ask_nobody())


class Silent(StandIn):
    """For 2 s, where `respond` gives no response."""

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        if (response := self.respond(len(self.bodies) - 1)) is not None:
            return response
        await asyncio.sleep(2)
        return web.Response()


def test_a_silent_server_is_given_up_at_the_deadline(run: Run) -> None:
    with pytest.raises(InferenceError, match=r"/generate did not answer within 0.5 s"):
        ask(run, Silent(lambda _: None), timeout=0.5)


def test_a_try_that_begins_after_the_deadline_ends_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """To aiohttp a time of 0 is no limit."""

    async def oversleep(seconds: float) -> None:
        await sleep(1.0)

    sleep = asyncio.sleep
    server = Silent(lambda k: None if k else web.Response(status=503, text="no workers"))
    monkeypatch.setattr(client_module.asyncio, "sleep", oversleep)
    with pytest.raises(InferenceError, match=r"/generate did not answer within 0.5 s; the try before: .*no workers"):
        ask(run, server, timeout=0.5)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (lambda _: web.Response(status=400, text="too long"), "400: too long"),
        (lambda _: None, "connection lost: Server disconnected"),
        (None, r"/generate did not end within 0\.5 s"),
    ],
    ids=["refused", "lost", "silent"],
)
def test_what_becomes_of_a_stream_is_said_alike(run: Run, server: Any, message: str) -> None:
    async def stream() -> None:
        client = GenerateClient("", timeout=0.5)
        stand_in = Silent(lambda _: None) if server is None else StandIn(server)
        async with stand_in.serve() as client.url, client:
            async for _ in client.stream([1], {}):
                pass

    with pytest.raises(InferenceError, match=f"^http://127.0.0.1:.*{message}"):
        run(stream())


def test_log_probs_of_other_tokens_are_refused(run: Run) -> None:
    broken = orjson.loads(orjson.dumps(ANSWER))
    broken["output_ids"][1] = 5
    with pytest.raises(InferenceError, match="log-probs are not of its 3 tokens"):
        ask(run, StandIn(lambda _: web.json_response(broken)))


def changed(**of_meta: Any) -> dict[str, Any]:
    return ANSWER | {"meta_info": ANSWER["meta_info"] | of_meta}


def of_tokens(*tokens: Any) -> dict[str, Any]:
    return changed(output_token_logprobs=[[-0.5, token, None] for token in tokens]) | {"output_ids": list(tokens)}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"error": "cuda oom"}, r"""KeyError: 'meta_info'\): {"error":"cuda oom"}"""),
        (None, r"TypeError: .*\): null"),
        ({"output_ids": [], "meta_info": {}}, r"KeyError: 'finish_reason'\): {"),
        (changed(finish_reason=None), r"request a: the engine has not finished it, nor said that it would not"),
        (changed(weight_versions="0"), r"TypeError: .*\): {"),
        (of_tokens(7, -8, 9), r"request a: among the engine's tokens is -8"),
        (of_tokens(7, 8.0, 9), r"request a: among the engine's tokens is 8\.0"),
        (of_tokens("b"), r"request a: among the engine's tokens is 'b'"),
        (of_tokens(*range(5)), r"request a: asked for 4 tokens, the engine has sampled 5"),
    ],
    ids=["error", "null", "no meta", "unfinished", "versions", "negative", "real", "text", "too many"],
)
def test_an_answer_of_another_shape_is_told_with_the_engine_s_words(run: Run, answer: Any, message: str) -> None:
    with pytest.raises(InferenceError, match=rf"^http://127\.0\.0\.1:\d+: /generate.*{message}"):
        ask(run, StandIn(lambda _: web.json_response(answer)), params={"max_new_tokens": 4})


def test_another_number_of_samples_is_told_with_the_engine_s_words(run: Run) -> None:
    with pytest.raises(InferenceError, match=r"""asked for 4 samples, got 1: {"error": "cuda oom"}"""):
        ask(run, StandIn(lambda _: web.json_response({"error": "cuda oom"})), n=4)


def test_an_engine_that_says_nothing_of_its_weights(run: Run) -> None:
    (generation,) = ask(run, StandIn(lambda _: web.json_response(changed(weight_versions=None))))
    assert (generation.tokens, generation.weight_versions) == ([7, 8, 9], [])


def test_samples_under_way_are_bounded(run: Run) -> None:
    """With 4 slots, requests for 3 and for 2 samples never overlap, those for 2 may; and one for 9 is served, alone."""
    sizes: list[int] = []
    most = 0

    class Counting(StandIn):
        async def handle(self, request: web.Request) -> web.Response:
            nonlocal most
            n = (await request.json())["sampling_params"]["n"]
            sizes.append(n)
            most = max(most, sum(sizes))
            await asyncio.sleep(0.02)
            sizes.remove(n)
            return ok(n)

    async def many() -> list[list[Generation]]:
        async with Counting(lambda _: None).serve() as url, GenerateClient(url, max_samples=4) as client:
            return await asyncio.gather(*(client.generate([1], {}, n=n) for n in [3, 2, 2, 3, 1, 1, 1, 1, 9, 2, 2]))

    assert [len(generations) for generations in run(many())] == [3, 2, 2, 3, 1, 1, 1, 1, 9, 2, 2]
    assert most == 9


def test_a_cancelled_request_frees_its_slots(run: Run) -> None:
    class Slow(StandIn):
        async def handle(self, request: web.Request) -> web.Response:
            if len(self.bodies) == 0:
                await super().handle(request)
                await asyncio.sleep(30)
            return ok()

    async def cancel_then_ask() -> list[Generation]:
        async with Slow(lambda _: ok()).serve() as url, GenerateClient(url, max_samples=1) as client:
            slow = asyncio.create_task(client.generate([1], {}))
            waiting = asyncio.create_task(client.generate([1], {}))
            await asyncio.sleep(0.1)
            waiting.cancel()
            slow.cancel()
            await asyncio.gather(slow, waiting, return_exceptions=True)
            return await asyncio.wait_for(client.generate([1], {}), 10)

    assert run(cancel_then_ask())[0].tokens == [7, 8, 9]
