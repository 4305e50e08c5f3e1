from __future__ import annotations

import asyncio

from slime.rollout.hooks import accepts, call


def test_plain_and_asynchronous_functions() -> None:
    async def later(value: int) -> int:
        return value

    assert asyncio.run(call(later, 1)) == asyncio.run(call(lambda value: value, 1)) == 1


def test_accepts() -> None:
    assert accepts(lambda sample, evaluation=False: None, "evaluation")
    assert accepts(lambda sample, **kwargs: None, "evaluation")
    assert not accepts(lambda sample: None, "evaluation")
