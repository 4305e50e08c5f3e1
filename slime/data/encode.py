"""From prompts to token ids: for generation, and for supervised training on conversations.

Invariant: the ids are those of the whole rendered text, tokenised once; a token is trained on when it begins inside of
what the assistant said, up to and including the token that ends its turn.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from tokenizers import Encoding

from slime.data.errors import DataError
from slime.data.prompts import Messages, Prompt
from slime.data.template import ChatTemplate, Span
from slime.data.tokenizer import Tokenizer

PROBE = "\ufdd2"  # a noncharacter, so in no text of a user or template


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt ready to become a Sample, in little memory, since it is kept for the next epoch."""

    prompt: str | Messages
    tokens: array  # of 4-byte integers: prompt and response
    response: str = ""
    loss_mask: bytes | None = None  # 0 or 1 for each token of the response

    @property
    def response_length(self) -> int:
        return 0 if self.loss_mask is None else len(self.loss_mask)


class Encoder(Protocol):
    limit_option: str  # the option that bounds the number of tokens, for messages

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]: ...


class PromptEncoder:
    """Prompts for generation. With a template, a text is the message of a user; without one, messages stay as they are
    and have no tokens, for a custom generate function to render."""

    limit_option = "--rollout-max-prompt-len"

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None = None):
        self._tokenizer = tokenizer
        self._template = template

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        contents = [self._render(prompt) for prompt in prompts]
        ids = iter(self._tokenizer.encode([content for content in contents if isinstance(content, str)]))
        return [Encoded(content, array("i", next(ids) if isinstance(content, str) else ())) for content in contents]

    def _render(self, prompt: Prompt) -> str | Messages:
        if self._template is None:
            return prompt.content
        messages = as_messages(prompt)
        try:
            return self._template.render(messages, prompt.tools, add_generation_prompt=True)
        except DataError as error:
            raise DataError(f"{prompt.where}: {error}") from error


class ConversationEncoder:
    """Conversations with a loss mask over all that the assistant says in them.

    Where the template marks {% generation %} blocks, these are what the assistant says. Other templates are asked: in
    one message after another its words are replaced by a probe, and the text that changes is that message's. Its turn
    begins after the header that the generation prompt writes and ends with the first end-of-turn token. Nothing of
    this depends on how the template renders earlier turns (some cut the thinking out of them).
    """

    limit_option = "--rollout-max-context-len"

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        self._tokenizer = tokenizer
        self._template = template

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Each begins with what comes before the first word of the assistant and ends with the assistant's last."""
        rendered = [self._render(prompt) for prompt in prompts]
        encodings = self._tokenizer.encode_with_offsets([text for text, _ in rendered])
        return [
            self._encoded(prompt, text, spans, encoding)
            for prompt, (text, spans), encoding in zip(prompts, rendered, encodings, strict=True)
        ]

    def _render(self, prompt: Prompt) -> tuple[str, list[Span]]:
        messages = as_messages(prompt)
        try:
            text, spans = self._template.render_spans(messages, prompt.tools)
            return text, spans or list(self._probe_spans(text, messages, prompt.tools))
        except DataError as error:
            raise DataError(f"{prompt.where}: {error}") from error

    def _probe_spans(self, text: str, messages: Messages, tools: list[dict[str, Any]] | None) -> Iterator[Span]:
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            probed = self._template.render(
                [*messages[:i], with_probe(message), *messages[i + 1 :]], tools, add_generation_prompt=False
            )
            if probed == text:
                continue  # the template leaves this message out
            begin = common_prefix(text, probed)
            end = len(text) - common_prefix(text[begin:][::-1], probed[begin:][::-1])
            yield self._turns.begin(text, begin), end

    def _encoded(self, prompt: Prompt, text: str, spans: list[Span], encoding: Encoding) -> Encoded:
        ids, begins = encoding.ids, [begin for begin, _ in encoding.offsets]
        mask = bytearray(len(ids))
        speaks_last = as_messages(prompt)[-1]["role"] == "assistant"
        for begin, end in spans:
            is_last = speaks_last and end == spans[-1][1]
            end_ids = self._turns.last_end_ids if is_last else self._turns.earlier_end_ids
            first, last = bisect_left(begins, begin), bisect_left(begins, end)
            last = through_end_of_turn(ids, first, last, end_ids)
            mask[first:last] = b"\1" * (last - first)
        first, last = mask.find(1), mask.rfind(1) + 1
        if first < 0:
            raise DataError(
                f"{prompt.where}: the assistant says nothing in this conversation, so there is nothing to learn"
            )
        split, end = begins[first], encoding.offsets[last - 1][1]
        return Encoded(text[:split], array("i", ids[:last]), text[split:end], bytes(mask[first:last]))

    @cached_property
    def _turns(self) -> Turns:
        return learn_turns(self._template, self._tokenizer)


@dataclass(frozen=True, slots=True)
class Turns:
    header: str  # what the prompt of a generation ends with; empty where the template knows no such thing
    lead: str  # then, what the template writes between the message before and the assistant's words
    earlier_end_ids: frozenset[int]  # tokens that end a turn with others after it
    last_end_ids: frozenset[int]  # tokens that end the conversation's last turn

    def begin(self, text: str, words: int) -> int:
        """Where the turn begins whose words are at `words`."""
        if not self.header:
            return words - len(self.lead) if text.endswith(self.lead, 0, words) else words
        header = text.rfind(self.header, 0, words)
        if header < 0:
            shown = text[max(0, words - 40) : words]
            raise DataError(
                f"a turn of the assistant does not begin with {self.header!r} as others do, but after {shown!r}"
            )
        return header + len(self.header)


def learn_turns(template: ChatTemplate, tokenizer: Tokenizer) -> Turns:
    """Reads off the template how it opens and ends a turn of the assistant, from a conversation of its own."""
    user, assistant, again = (
        {"role": r, "content": c} for r, c in (("user", "x"), ("assistant", PROBE), ("user", PROBE))
    )
    asked = template.render([user], add_generation_prompt=False)
    prompted = template.render([user], add_generation_prompt=True)
    last = template.render([user, assistant], add_generation_prompt=False)
    earlier = template.render([user, assistant, again], add_generation_prompt=False)
    if PROBE not in last or earlier.count(PROBE) != 2:
        raise DataError("the chat template does not show what the assistant says, so there is nothing to learn from it")
    turn = common_prefix(asked, prompted)  # where the assistant's turn begins in all of them
    header = prompted[turn:]
    for text in (last, earlier):  # a template that opens the thinking in the prompt may not do so in earlier turns
        header = header[: common_prefix(header, text[turn:])]
    stops = tokenizer.stop_token_ids

    def first_special(text: str) -> set[int]:
        (ids,) = tokenizer.encode([text.split(PROBE)[1]])
        return set([i for i in ids if i in tokenizer.special_ids or i in stops][:1])

    ends_last, ends_earlier = first_special(last), first_special(earlier)
    if (
        not ends_last
    ):  # nothing ends a turn but, in some templates, the header of the next message, at which models then stop
        ends_earlier &= stops
    lead = last[turn:].partition(PROBE)[0]
    return Turns(header, lead, frozenset(ends_earlier and ends_earlier | stops), ends_last | stops)


def through_end_of_turn(ids: Sequence[int], first: int, last: int, end_ids: frozenset[int]) -> int:
    """The end of the turn that says the tokens first..last, with the token that ends it if there is one."""
    if last > first and ids[last - 1] in end_ids:
        return last
    return next((i + 1 for i in range(last, len(ids)) if ids[i] in end_ids), last)


def with_probe(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the probe in place of all that the assistant says in it."""
    probed = {**message, "content": PROBE}
    if message.get("reasoning_content"):
        probed["reasoning_content"] = PROBE
    if message.get("tool_calls"):
        probed["tool_calls"] = deepcopy(message["tool_calls"])
        for call in probed["tool_calls"]:
            call.get("function", call)["name"] = PROBE
    return probed


def as_messages(prompt: Prompt) -> Messages:
    return [{"role": "user", "content": prompt.content}] if isinstance(prompt.content, str) else prompt.content


def common_prefix(a: str, b: str) -> int:
    """The number of characters that two texts share at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
