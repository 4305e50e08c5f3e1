"""docs/rewards.md: its examples run, and it leaves no grader out."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from slime.data.sample import Sample
from slime.rewards import settle
from slime.rewards.catalogue import GRADERS
from slime.rewards.instructions import CHECKS
from tests.rewards.test_hub import args_of

DOCUMENT = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()


@pytest.fixture(scope="module", autouse=True)
def my_rewards():
    module = ModuleType("my_rewards")
    exec("\n".join(re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)), module.__dict__)
    sys.modules["my_rewards"] = module
    yield
    del sys.modules["my_rewards"]


def rewards(function: str, **options: object) -> list:
    samples = [
        Sample(index=i, response=response, label=4, response_length=length)
        for i, (response, length) in enumerate([(r"\boxed{4}", 50), (r"\boxed{4}", 20), (r"\boxed{5}", 10)])
    ]
    args = args_of(custom_rm_path=f"my_rewards.{function}", rollout_max_response_len=100, **options)
    return [outcome.reward for outcome in asyncio.run(settle(args, samples))]


def test_the_reward_of_a_sample() -> None:
    assert [reward["score"] for reward in rewards("right_and_short", reward_key="score")] == [0.75, 0.9, 0.0]


def test_the_reward_of_a_group() -> None:
    assert rewards("best", group_rm=True) == [0.0, 1.0, 0.0]


def test_every_instruction_with_a_check_is_listed() -> None:
    rows = re.findall(r"^\| `(\w+:)` \| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert sorted(group + name for group, names in rows for name in re.findall(r"`(\w+)`", names)) == sorted(CHECKS)


def test_every_grader_is_described() -> None:
    described = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", DOCUMENT, re.MULTILINE)))
    assert set(GRADERS) <= set(described)
