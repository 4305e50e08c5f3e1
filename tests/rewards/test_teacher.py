"""On-policy distillation: what is made of a teacher's answer. A real engine answers in
tests/rollout/test_generation.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from slime.data.sample import Sample
from slime.rewards import RewardFailure
from slime.rewards.teacher import ask_teacher
from tests.inference.stand_in import StandIn


def asked(entries: Any, response: int = 2) -> Sample:
    """A sample of the tokens 5, 6, 7 whose teacher answers these entries."""
    sample = Sample(index=3, group_index=0, rollout_id=0, tokens=[5, 6, 7], response_length=response)
    server = StandIn(lambda k: web.json_response({"meta_info": {"input_token_logprobs": entries}}))

    async def ask() -> float:
        async with server.serve() as url:
            return await ask_teacher(SimpleNamespace(rm_url=url, rm_model=None, http_proxy=None, rm_timeout=20), sample)

    assert asyncio.run(ask()) == 0.0
    assert not response or server.bodies[0]["logprob_start_len"] == 0
    return sample


def test_each_response_token_has_what_the_teacher_thinks_of_it() -> None:
    assert asked([[None, 5, None], [-0.5, 6, None], [-0.25, 7, None]]).teacher_log_probs == [-0.5, -0.25]


def test_the_last_token_of_a_vocabulary_which_sglang_calls_0() -> None:
    assert asked([[None, 5, None], [-0.5, 6, None], [-0.25, 0, None]]).teacher_log_probs == [-0.5, -0.25]


def test_nobody_is_asked_about_an_empty_response() -> None:
    assert asked([], response=0).teacher_log_probs == []


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([[None, 5, None], [-0.5, 8, None], [-0.25, 7, None]], "read 2 tokens, 1 of them others than the 2 that were"),
        ([[-0.25, 6, None]], "read 1 tokens, 0 of them others"),
        ([[None, 6, None], [None, 7, None]], "no log-probabilities"),
        ("none", "no log-probabilities"),
    ],
)
def test_an_answer_about_something_else(entries: Any, message: str) -> None:
    with pytest.raises(RewardFailure, match=message):
        asked(entries)
