"""Users' functions in the event loop, whether or not they are asynchronous."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from slime.config.hooks import Hook
from slime.data.sample import Sample
from slime.rewards.threads import TooLate, call_within
from slime.rollout.types import RolloutError


async def ask(hook: Hook, subject: str, limit: float, *args: Any, **kwargs: Any) -> Any:
    """What the hook returns. Raises RolloutError, with the name of the `subject`, for whatever it raises, and when it
    takes more than `limit` seconds."""
    try:
        return await call_within(limit, hook.function, *args, **kwargs)
    except TooLate as error:
        late = f"{hook} did not return within {limit:g} s (--sglang-router-request-timeout-secs)"
        raise RolloutError(f"{subject}: {late}") from error
    except Exception as error:
        raise RolloutError(f"{subject}: {hook} raised {type(error).__name__}: {error}") from error


@contextmanager
def keeping_numbers(samples: Sequence[Sample], function: Hook | str) -> Iterator[None]:
    """While a user's function sees the samples. Raises RolloutError, with its name, where it gives one of them another
    number: the ledger would take it for another sample, and count this one as never finished."""
    before = [(sample, sample.index, sample.name) for sample in samples]
    yield
    for sample, number, name in before:
        if sample.index != number:
            raise RolloutError(renumbered(name, function, sample.index))


def renumbered(name: str, function: Hook | str, number: int | None) -> str:
    return f"{name}: {function} has made its index {number}: leave it as it is, the ledger knows the sample by it"


def accepts(function: Callable[..., Any], keyword: str) -> bool:
    """Whether the function can be given this keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    return any(
        p.kind is p.VAR_KEYWORD or (p.name == keyword and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        for p in parameters
    )
