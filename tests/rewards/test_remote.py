"""Reward services: a real server, which answers as it is told to."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slime.data.sample import Sample
from slime.rewards import RewardError, RewardFailure
from slime.rewards.catalogue import judged


class Service:
    """Answers one after the other: (status, JSON or text); the last one for ever."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers, self.asked, self.tokens, self.hosts = list(answers), [], [], []

    async def handle(self, request: web.Request) -> web.Response:
        self.hosts.append(f"{request.url.host}:{request.url.port}")
        self.asked.append((request.path, await request.json()))
        self.tokens.append(request.headers.get("Authorization"))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(body, str):
            return web.Response(status=status, text=body)
        return web.json_response(body, status=status)


def verdict(service: Service, rm_type: str, sample: Sample | None = None, *, by_proxy: bool = False, **options: Any):
    sample = sample or Sample(index=3, prompt="2+2?", response="<think>hm</think>4", label="4", metadata={"k": 1})
    defaults = {"rm_timeout": 20, "reward_key": None, "rm_model": None, "http_proxy": None}
    defaults |= {"rm_judge_model": "judge", "rm_judge_prompt": None, "rm_judge_params": {}}

    async def serve_and_ask():
        runner = web.ServerRunner(web.Server(service.handle))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            routers = {"mine": ("127.0.0.1", runner.addresses[0][1])}  # those of the models that the run serves
            at = {"rm_url": None, "sglang_model_routers": routers} if "rm_model" in options else {"rm_url": url}
            at |= {"rm_url": "http://not-there.invalid", "http_proxy": url} if by_proxy else {}
            return await judged(SimpleNamespace(**defaults | at | options), sample, rm_type)
        finally:
            await runner.cleanup()

    return asyncio.run(serve_and_ask())


@pytest.mark.parametrize("answer", [0.5, {"score": 0.5}, {"reward": 0.5, "more": "x"}])
def test_a_remote_reward(answer: Any) -> None:
    service = Service((200, answer))
    assert verdict(service, "remote_rm").reward == 0.5
    assert service.asked == [
        ("/", {"prompt": "2+2?", "response": "<think>hm</think>4", "label": "4", "metadata": {"k": 1}})
    ]


def test_a_remote_reward_of_several_parts() -> None:
    assert verdict(Service((200, {"style": 0.25, "right": 1})), "remote_rm", reward_key="style").reward["style"] == 0.25


def test_a_service_is_asked_through_a_proxy_where_one_is_named() -> None:
    """The service stands in for the proxy: it is asked for the whole address of a host that is not there."""
    service = Service((200, 0.5))
    assert verdict(service, "remote_rm", by_proxy=True).reward == 0.5
    assert service.hosts == ["not-there.invalid:80"]


@pytest.mark.parametrize("answer", ["no JSON", {"value": 1}, [1.0], None, True, {"score": "1"}])
def test_an_answer_that_is_no_reward(answer: Any) -> None:
    with pytest.raises(RewardFailure, match=r"sample 3 .*reward service http"):
        verdict(Service((200, answer)), "remote_rm")


@pytest.mark.parametrize("answer", ["NaN", '{"score": Infinity}', "1e999", "1" + "0" * 400])
def test_a_number_that_is_none_is_a_mistake_of_the_service(answer: str) -> None:
    with pytest.raises(RewardError, match=r"sample 3 .*reward service http.* not a finite number") as raised:
        verdict(Service((200, answer)), "remote_rm")
    assert not isinstance(raised.value, RewardFailure)


def test_an_address_that_is_none_is_not_asked_until_the_deadline() -> None:
    for url in ("notaurl", "ftp://there"):
        args = SimpleNamespace(rm_url=url, rm_model=None, http_proxy=None, rm_timeout=20, reward_key=None)
        with pytest.raises(RewardError, match=rf"--rm-url {url} is no address; write it as http://host:port"):
            asyncio.run(judged(args, Sample(response="4"), "remote_rm"))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_service_is_asked_again(status: int) -> None:
    service = Service((status, "busy"), (200, 1.0))
    assert verdict(service, "remote_rm").score == 1.0 and len(service.asked) == 2


def test_a_refusal_is_final_and_says_the_service_s_words() -> None:
    service = Service((400, "no such task"), (200, 1.0))
    with pytest.raises(
        RewardFailure, match=r"sample 3 \(.*\): reward service http://[\d.:]+: 400 Bad Request: no such task"
    ):
        verdict(service, "remote_rm")
    assert len(service.asked) == 1


def test_a_redirection_is_not_followed_and_said_in_one_line() -> None:
    """A POST would become a GET of another page."""
    service = Service((302, "moved\n<p>elsewhere"), (200, 1.0))
    with pytest.raises(RewardFailure, match=r"302 Found: moved <p>elsewhere$"):
        verdict(service, "remote_rm")
    assert len(service.asked) == 1


def test_the_deadline_holds_over_all_tries() -> None:
    with pytest.raises(RewardFailure, match=r"no reward within 0.5 s \(--rm-timeout\); last: 503 .*busy"):
        verdict(Service((503, "busy")), "remote_rm", rm_timeout=0.5)


def test_nobody_there() -> None:
    args = SimpleNamespace(rm_url="http://127.0.0.1:9", rm_model=None, http_proxy=None, rm_timeout=0.4, reward_key=None)
    with pytest.raises(RewardFailure, match=r"no reward within 0.4 s .*last: Cannot connect"):
        asyncio.run(judged(args, Sample(response="4"), "remote_rm"))
    with pytest.raises(RewardError, match="Give --rm-url"):
        asyncio.run(
            judged(SimpleNamespace(rm_url=None, rm_model=None, http_proxy=None), Sample(response="4"), "remote_rm")
        )


@pytest.mark.parametrize("token", [None, "secret"])
def test_a_model_of_the_same_run_is_asked_through_its_router(token: str | None) -> None:
    served = {"rm_model": "mine", "sglang_router_token": token}
    service = Service((200, {"data": [{"embedding": [-1.5], "index": 0}]}))
    assert verdict(service, "reward_model", **served).score == -1.5
    assert service.asked == [("/v1/embeddings", {"model": "mine", "input": "2+2?<think>hm</think>4"})]
    assert service.tokens == [token and f"Bearer {token}"]
    service = Service((200, {"choices": [{"message": {"content": "Score: 1"}}]}))
    assert verdict(service, "judge", **served, rm_judge_params={"max_tokens": 9}).score == 1
    ((path, body),) = service.asked
    assert (path, body["model"], body["max_tokens"]) == ("/v1/chat/completions", "mine", 9)


@pytest.mark.parametrize("answer", [{"embedding": [-1.5], "meta_info": {}}, [{"embedding": [-1.5]}]])
def test_a_reward_model_reads_prompt_and_response(answer: Any) -> None:
    service = Service((200, answer))
    assert verdict(service, "reward_model").score == -1.5
    assert service.asked == [("/classify", {"text": "2+2?<think>hm</think>4"})]


def test_an_embedding_is_no_reward() -> None:
    with pytest.raises(RewardFailure, match="not one score: is it a reward model"):
        verdict(Service((200, [{"embedding": [0.1, 0.2]}])), "reward_model")


def said(text: str) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": text}}]}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("It is right.\nScore: 1", 1),
        ("**Score: 0**", 0),
        ("Score: 7/10", 0.7),
        ("*Final score:* **.5** / 2.", 0.25),
        ("- Score: -1", -1),
        ("<think>Score: 1</think>Bad.\nScore: 0.5", 0.5),
    ],
)
def test_a_judge(text: str, score: float) -> None:
    service = Service(said(text))
    assert verdict(service, "judge").score == pytest.approx(score)
    ((path, body),) = service.asked
    question = body["messages"][0]["content"]
    assert path == "/v1/chat/completions" and body["model"] == "judge"
    assert "2+2?" in question and "[Reference]\n4\n" in question and "hm" not in question


@pytest.mark.parametrize(
    "text",
    [
        *("Fine.", "Score: 1\nbut then again", "Score: 1/0", "Score: 1/.0", "<think>Score: 1", ""),
        *(
            "Score: 1 or Score: 0",
            "Score: 1-2",
            "Score: 1e-3",
            "Score: 50%",
            "Score: 0,5",
            "Score: 1. But it is wrong.",
        ),
        *("Do not give Score: 1", "If it were right, Score: 1"),
    ],
)
def test_a_judge_without_a_score_is_a_failure(text: str) -> None:
    with pytest.raises(RewardFailure, match='did not end with a line "Score: X"'):
        verdict(Service(said(text)), "judge")


@pytest.mark.parametrize("text", ["Score: 1", "Score: 1/1", "Right.\nScore: 1.", "Score: 1\n"])
def test_a_judge_that_was_cut_off_stated_no_score(text: str) -> None:
    """It may have been about to say 10, or to think again."""
    service = Service((200, {"choices": [{"message": {"content": text}, "finish_reason": "length"}]}))
    with pytest.raises(RewardFailure, match=r"sample 3 .*the judge was cut off after max_tokens .*--rm-judge-params"):
        verdict(service, "judge")
    service = Service((200, {"choices": [{"message": {"content": "Score: 1"}, "finish_reason": "stop"}]}))
    assert verdict(service, "judge").score == 1


def test_an_answer_cannot_say_where_it_ends() -> None:
    """The marks around it are others each time."""
    service = Service(said("Score: 1"))
    marks = []
    for _ in range(2):
        verdict(service, "judge")
        question = service.asked[-1][1]["messages"][0]["content"]
        opened, closed = re.search(r"\[Answer (\w+)\]\n4\n\[End of answer (\w+)\]", question).groups()
        assert opened == closed
        marks.append(opened)
    assert marks[0] != marks[1]


def test_a_question_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"sample 3 .*--rm-judge-prompt .*/nope cannot be read: .*No such file"):
        verdict(Service(said("Score: 1")), "judge", rm_judge_prompt=str(tmp_path / "nope"))


def test_the_question_put_to_a_judge(tmp_path: Path) -> None:
    """Braces in a response stand for themselves."""
    file = tmp_path / "judge.txt"
    file.write_text("Q {prompt} A {response} L {label} {other}")
    service = Service(said("Score: 1"))
    sample = Sample(prompt=[{"role": "user", "content": "hi"}], response="{label}", label="x")
    verdict(service, "judge", sample, rm_judge_prompt=str(file))
    assert service.asked[0][1]["messages"][0]["content"] == "Q user: hi A {label} L x {other}"


def test_how_long_a_service_may_take_only_rm_timeout_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp has a limit of its own for a request; it went off first, and the service was asked over and over."""
    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.2))

    class Slow(Service):
        async def handle(self, request: web.Request) -> web.Response:
            await asyncio.sleep(1)
            return await super().handle(request)

    service = Slow((200, 0.5))
    assert verdict(service, "remote_rm").reward == 0.5
    assert len(service.asked) == 1
