"""Users' functions in the event loop, whether or not they are asynchronous."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

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


@dataclass(frozen=True, slots=True)
class Identity:
    """Which sample a user's function is given; the ledger knows it by its index, which has to stay."""

    name: str
    index: int | None
    group_index: int | None
    rollout_id: int | None

    @classmethod
    def of(cls, sample: Sample) -> Self:
        return cls(sample.name, sample.index, sample.group_index, sample.rollout_id)

    def check(self, sample: Sample, function: Hook | str) -> None:
        """Raises RolloutError, with the function's name, where it has another number: the ledger would take it for
        another sample, and count this one as never finished."""
        if sample.index != self.index:
            raise RolloutError(
                f"{self.name}: {function} has made its index {sample.index}: leave it as it is, the ledger knows the"
                " sample by it"
            )

    def adopt(self, made: Sample, function: Hook | str) -> None:
        """What the function has made of the sample is that sample, where it does not say what it is. Raises as
        `check`."""
        for name in ("group_index", "index", "rollout_id"):
            if getattr(made, name) is None:
                setattr(made, name, getattr(self, name))
        self.check(made, function)


@contextmanager
def keeping_numbers(samples: Sequence[Sample], function: Hook | str) -> Iterator[None]:
    """While a user's function sees the samples. Raises RolloutError where it gives one of them another number."""
    before = [(sample, Identity.of(sample)) for sample in samples]
    yield
    for sample, identity in before:
        identity.check(sample, function)


def accepts(function: Callable[..., Any], keyword: str) -> bool:
    """Whether the function can be given this keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    return any(
        p.kind is p.VAR_KEYWORD or (p.name == keyword and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        for p in parameters
    )
