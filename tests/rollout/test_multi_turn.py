"""Generation in several turns: the calculator of the `tool` task, and the example of docs/hooks.md, with a server that
says what the model would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from slime.config import Config
from slime.data.sample import Sample, Status
from slime.data.tokenizer import Tokenizer
from slime.inference.router import SESSION_HEADER
from slime.rollout.generator import Generator, Job
from slime.rollout.metrics import further_metrics
from slime.rollout.sampling import Sampling
from slime.tiny import Tiny
from slime.tiny.calculator import MAX_TURNS
from tests.inference.stand_in import StandIn

Play = Callable[..., Sample]
SHOWN = SimpleNamespace(
    log_multi_turn=True, log_passrate=False, log_correct_samples=False, log_reward_category=None
)  # of a configuration


@pytest.fixture
def play(make_config: Callable[..., Config], tiny: Tiny) -> Iterator[Play]:
    """Generates one sample with an engine that says these texts, one a turn; `play.server` has seen the requests."""
    tokenizer = Tokenizer.load(tiny.model)

    def turn(text: str, reason: str, limit: int) -> web.Response:
        (whole,) = tokenizer.encode([text])
        tokens, reason = whole[:limit], reason if len(whole) <= limit else "length"
        meta: dict[str, Any] = {"id": "a", "finish_reason": {"type": reason}, "prompt_tokens": 1, "cached_tokens": 0}
        meta["output_token_logprobs"] = [[-0.5, token, None] for token in tokens]
        meta["weight_versions"] = [{"version": "3", "start": 0, "end": len(tokens)}]
        return web.json_response({"output_ids": tokens, "meta_info": meta})

    def one(*said: str, reason: str = "stop", by: str = "slime.tiny.calculator.generate", **more: Any) -> Sample:
        config = make_config(custom_generate_function_path=by, rollout_max_response_len=60).replace(**more)
        config = config.replace(sglang_router_ip="127.0.0.1", sglang_router_port=9)
        play_.server = StandIn(
            lambda k: turn(said[k], reason, play_.server.bodies[k]["sampling_params"]["max_new_tokens"])
        )
        (prompt,) = tokenizer.encode(["34*62="])
        sample = Sample(group_index=0, index=7, prompt="34*62=", tokens=prompt, label="2108")

        async def run() -> list[Any]:
            async with play_.server.serve() as url:
                generator.client.url = url
                group = await generator.group([sample], Job(config, Sampling.for_rollout(config), 5))
                await generator.client.close()
                return group

        with Generator(config) as generator:
            (made,) = generator.run(run())
        made.check()
        return made

    play_ = one
    yield one


CALL = "<tool_call>34*62</tool_call><|im_end|>"


def test_a_call_is_answered_and_the_answer_masked(play: Play, tiny: Tiny) -> None:
    sample = play(CALL, "2108<|im_end|>")
    observed = "\n<|im_start|>tool\n2108<|im_end|>\n<|im_start|>assistant\n"
    assert Tokenizer.load(tiny.model).decode([sample.tokens])[0] == f"34*62={CALL}{observed}2108<|im_end|>"
    called, said, answer = 8, 14 - 1, 5
    assert sample.loss_mask == [1] * called + [0] * said + [1] * answer
    assert sample.rollout_log_probs == [-0.5] * called + [0.0] * said + [-0.5] * answer
    assert (sample.response, sample.reward, sample.status) == ("2108", 1.0, Status.COMPLETED)
    assert (sample.metadata["round_number"], sample.weight_versions) == (2, ["3", "3"])


def test_turns_share_a_session_and_a_budget(play: Play) -> None:
    sample = play(CALL, "2108<|im_end|>")
    first, second = play.server.bodies
    assert second["input_ids"] == sample.tokens[: len(first["input_ids"]) + 8 + 13]
    assert [body["sampling_params"]["max_new_tokens"] for body in (first, second)] == [60, 60 - 8 - 13]
    assert [headers[SESSION_HEADER] for headers in play.server.headers] == ["5-7", "5-7"]


def test_an_answer_without_a_call_is_one_turn(play: Play) -> None:
    sample = play("2108<|im_end|>")
    assert (sample.reward, sample.loss_mask, sample.metadata["round_number"]) == (1.0, None, 1)


def test_who_only_calls_is_stopped(play: Play) -> None:
    sample = play(*[CALL] * MAX_TURNS)
    assert (sample.reward, sample.metadata["round_number"], len(play.server.bodies)) == (0.0, MAX_TURNS, MAX_TURNS)


def test_a_turn_that_is_cut_is_the_last(play: Play) -> None:
    sample = play("<tool_call>34*62</tool_call>", reason="length")
    assert (sample.status, sample.reward, len(play.server.bodies)) == (Status.TRUNCATED, 0.0, 1)


@pytest.mark.usefixtures("my_hooks")
def test_a_user_asks_again_and_all_of_it_is_as_the_template_writes_it(play: Play, tiny: Tiny) -> None:
    sample = play("2100<|im_end|>", "2108<|im_end|>", by="my_hooks.ask_again")
    asked = "<|im_start|>user\n34*62=<|im_end|>\n<|im_start|>assistant\n2100<|im_end|>\n"
    again = "<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n2108<|im_end|>"
    assert Tokenizer.load(tiny.model).decode([sample.tokens])[0] == asked + again
    assert sample.loss_mask == [1] * 5 + [0] * (sample.response_length - 10) + [1] * 5
    assert (sample.reward, sample.metadata["template_drift"]) == (1.0, False)


@pytest.mark.usefixtures("my_hooks")
def test_turns_fit_into_the_context(play: Play) -> None:
    said, by = ("2100<|im_end|>", "2108<|im_end|>"), "my_hooks.ask_again"
    length = len(play(*said, by=by).tokens)
    play(*said, by=by, rollout_max_context_len=length - 2)
    assert play.server.bodies[1]["sampling_params"]["max_new_tokens"] == 5 - 2
    sample = play(*said, by=by, rollout_max_context_len=length - 5)
    assert (len(play.server.bodies), sample.status, sample.response) == (1, Status.TRUNCATED, "2100")


@pytest.mark.usefixtures("my_hooks")
def test_a_template_that_shows_earlier_turns_otherwise_is_told_and_changes_nothing(
    play: Play, tiny: Tiny, tmp_path: Path
) -> None:
    """Case 34: it leaves the thinking out of what was said before."""
    model = shutil.copytree(tiny.model, tmp_path / "model")
    written = json.loads((model / "tokenizer_config.json").read_text())
    shown = "(message.content if loop.last else message.content.split('</think>')[-1])"
    written["chat_template"] = written["chat_template"].replace("message.content", shown)
    (model / "tokenizer_config.json").write_text(json.dumps(written))
    said = ("<think>1</think>2100<|im_end|>", "<think>2</think>2108<|im_end|>")
    sample, plain = (
        play(*said, by="my_hooks.ask_again", hf_checkpoint=str(directory)) for directory in (model, tiny.model)
    )
    assert (sample.metadata["template_drift"], plain.metadata["template_drift"]) == (True, False)
    assert (sample.tokens, sample.loss_mask, sample.reward) == (plain.tokens, plain.loss_mask, 1.0)
    assert further_metrics(SHOWN, [sample, plain], [1.0, 1.0])["multi_turn_metric/template_drift"] == 0.5
