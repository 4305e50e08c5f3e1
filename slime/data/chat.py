"""Chat: a conversation that goes on, by tokens, after what a model said in it.

Invariant: what was sampled stays as it was sampled. Only what others say is ever rendered and tokenised. The turns
before it are not: templates show them otherwise the next time (some cut the thinking out, trim, write tool calls in
their own way), and a tokenizer may split the same words at other places. `drift` tells where that would have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from slime.data.encode import PROBE, Turns, learn_turns, with_probe
from slime.data.errors import DataError
from slime.data.prompts import Messages
from slime.data.template import ChatTemplate
from slime.data.tokenizer import Tokenizer

ANYBODY = {"role": "user", "content": "x"}  # some templates refuse a conversation that nobody has begun


class Chat:
    """How the template of a checkpoint goes on."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def prompt(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """The beginning of a conversation, up to where the model speaks."""
        return self._tokenizer.encode([self._template.render(messages, tools, add_generation_prompt=True)])[0]

    def after(
        self,
        tokens: Sequence[int],
        said: dict[str, Any],
        others: Messages,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        """What to append to `tokens`, which end with what the model said, so that it reads `others` and speaks again.

        `said` is that turn as a message; of its content nothing comes into the tokens, but a template may ask whether
        it called tools. The token that ends a turn is appended if the model did not sample one. Raises DataError when
        the template refuses the messages, or does not show where a turn ends.
        """
        (given,) = self._template.given([said], tools)
        try:
            text = self._template.render([ANYBODY, with_probe(given), *others], tools, add_generation_prompt=True)
        except DataError:  # of what was said it says what is wrong with that
            self._template.render([ANYBODY, said, *others], tools, add_generation_prompt=True)
            raise
        _, probe, rest = text.rpartition(PROBE)
        (ids,) = self._tokenizer.encode([rest])
        ends = self._turns.earlier_end_ids or self._tokenizer.special_ids | self._tokenizer.stop_token_ids
        end = next((position for position, id_ in enumerate(ids) if id_ in ends), None)
        if not probe or end is None:
            raise DataError("the chat template does not show where a turn of the assistant ends")
        has_ended = tokens[-1] in ends or tokens[-1] in self._tokenizer.stop_token_ids
        return ids[end + has_ended :]

    def drift(self, tokens: Sequence[int], messages: Messages, tools: list[dict[str, Any]] | None = None) -> int | None:
        """The position of the first of `tokens` that the template would write otherwise, were the conversation rendered
        anew; None if it would write the same. A token that ends the last turn is not looked at."""
        speaks_last = messages[-1]["role"] == "assistant"
        (ids,) = self._tokenizer.encode([self._template.render(messages, tools, add_generation_prompt=not speaks_last)])
        recorded = list(tokens)
        if speaks_last and recorded[-1] in self._tokenizer.stop_token_ids:
            recorded.pop()
        if ids[: len(recorded)] == recorded:
            return None
        pairs = enumerate(zip(recorded, ids, strict=False))
        return next((position for position, (ours, its) in pairs if ours != its), min(len(recorded), len(ids)))

    @cached_property
    def _turns(self) -> Turns:
        return learn_turns(self._template, self._tokenizer)
