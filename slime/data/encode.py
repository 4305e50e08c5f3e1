"""From prompts to token ids: for generation, and for supervised training on conversations.

Invariant: the ids are those of the whole rendered text, tokenised once; a token is trained on when it begins inside of
what the assistant said, up to and including the token that ends its turn. Of other messages at most the first token is
trained on, where models end their turns at the header of the next one.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

from tokenizers import Encoding

from slime.data.errors import DataError
from slime.data.prompts import Messages, Prompt
from slime.data.template import ChatTemplate, Span
from slime.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)

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


class Turn(NamedTuple):
    """Where a text shows what the assistant says, in characters."""

    begin: int
    words: int  # where the last of its words ends
    end: int  # where the message ends, with all that the template writes after the words


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

    @classmethod
    def from_config(cls, config: Any, tokenizer: Tokenizer) -> PromptEncoder:
        renders = config.apply_chat_template and not config.disable_rollout_global_dataset
        return cls(tokenizer, ChatTemplate(tokenizer, config.apply_chat_template_kwargs) if renders else None)

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        contents = [self._render(prompt) for prompt in prompts]
        for prompt, content in zip(prompts, contents, strict=True):
            _check_text(prompt, content)
        ids = iter(self._tokenizer.encode([content for content in contents if isinstance(content, str)]))
        encoded = [Encoded(content, array("i", next(ids) if isinstance(content, str) else ())) for content in contents]
        for prompt, one in zip(prompts, encoded, strict=True):
            if self._template is not None and not one.tokens:
                raise DataError(f"{prompt.where}: the chat template makes no token of the prompt")
        return encoded

    def _render(self, prompt: Prompt) -> str | Messages:
        if self._template is None:
            return prompt.content
        try:
            messages = self._template.given(as_messages(prompt), prompt.tools, strict=True)
            return self._template.render(messages, prompt.tools, add_generation_prompt=True)
        except DataError as error:
            raise DataError(f"{prompt.where}: {error}") from error


def _check_text(prompt: Prompt, content: str | Messages) -> None:
    """Raises DataError for what JSON can say and no tokenizer reads."""
    try:
        if isinstance(content, str):
            content.encode()
    except UnicodeEncodeError as error:
        half = content[error.start]
        raise DataError(f"{prompt.where}: {half!r}, half of a surrogate pair, stands alone in its text") from error


class ConversationEncoder:
    """Conversations with a loss mask over all that the assistant says in them.

    Where the template marks {% generation %} blocks, these are what the assistant says. Other templates are asked: in
    one message after another its words are replaced by a probe, and the text that changes is that message's; rendered
    as the last message, it shows what the template writes after these words. Its turn begins after what the generation
    prompt writes between the message before and these words, and ends with the first end-of-turn token. Nothing of this
    depends on how the template renders earlier turns (some cut the thinking out of them).

    Some templates write nothing after the last turn, but models of theirs stop at the header of whoever speaks next:
    that token is appended then.
    """

    limit_option = "--rollout-max-context-len"

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        self._tokenizer = tokenizer
        self._template = template
        self._stops: dict[bool, int | None] = {}  # after tool calls, after words

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Each begins with what comes before the first word of the assistant and ends with the assistant's last."""
        rendered = [self._render(prompt) for prompt in prompts]
        for prompt, (text, _) in zip(prompts, rendered, strict=True):
            _check_text(prompt, text)
        encodings = self._tokenizer.encode_with_offsets([text for text, _ in rendered])
        return [
            self._encoded(prompt, text, spans, encoding)
            for prompt, (text, spans), encoding in zip(prompts, rendered, encodings, strict=True)
        ]

    def _render(self, prompt: Prompt) -> tuple[str, list[Turn]]:
        try:
            messages = self._template.given(as_messages(prompt), prompt.tools, strict=True)
            text, spans = self._template.render_spans(messages, prompt.tools)
            marked = [Turn(begin, end, end) for begin, end in spans]
            return text, marked or list(self._probed_turns(text, messages, prompt.tools))
        except DataError as error:
            raise DataError(f"{prompt.where}: {error}") from error

    def _probed_turns(self, text: str, messages: Messages, tools: list[dict[str, Any]] | None) -> Iterator[Turn]:
        render = partial(self._template.render, tools=tools, add_generation_prompt=False)
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, probed, after = messages[:i], with_probe(message), messages[i + 1 :]
            changed = render([*before, probed, *after])
            if changed == text:
                continue  # the template leaves this message out
            begin, words = difference(text, changed)
            end = len(text)
            if after:
                as_last = render([*before, message])
                _, words_as_last = difference(as_last, render([*before, probed]))
                end = words + common_prefix(text[words:], as_last[words_as_last:])
            yield Turn(self._turn_begins(text, begin, messages, i, tools), words, end)

    def _turn_begins(
        self, text: str, words: int, messages: Messages, i: int, tools: list[dict[str, Any]] | None
    ) -> int:
        """Where the turn of message i begins, whose words are at `words`: after the last header since the words of the
        message before, or, where the template writes none (after the result of a tool, say), after all that it writes
        for the model to go on from there."""
        header, lead = self._turns.header, self._turns.lead
        if lead and text.endswith(lead, 0, words):
            return words - len(lead) + len(header)
        spoken, probed = self._said_before(text, messages, i, tools)
        begin = text.rfind(header, spoken, words) if header else -1
        if begin >= 0:
            return begin + len(header)
        _, probe, prompted = self._template.render(probed, tools, add_generation_prompt=True).rpartition(PROBE)
        if header and (not probe or header in prompted):
            shown = text[max(0, words - 40) : words]
            raise DataError(f"a turn of the assistant does not begin with {header!r} as others do, but after {shown!r}")
        return spoken + len(prompted) if probe and text.startswith(prompted, spoken, words) else words

    def _said_before(
        self, text: str, messages: Messages, i: int, tools: list[dict[str, Any]] | None
    ) -> tuple[int, Messages]:
        """Where the words of the last message before i that is shown end, and the messages before i with a probe in
        place of these words."""
        for before in range(i - 1, -1, -1):
            probed = [*messages[:before], with_probe(messages[before]), *messages[before + 1 :]]
            changed = self._template.render(probed, tools, add_generation_prompt=False)
            if changed != text:
                return difference(text, changed)[1], probed[:i]
        return 0, messages[:i]

    def _encoded(self, prompt: Prompt, text: str, turns: list[Turn], encoding: Encoding) -> Encoded:
        ids, offsets = encoding.ids, encoding.offsets
        mask = bytearray(len(ids))
        for turn in turns:
            tokens = tokens_of(turn, text, ids, offsets, self._turns.end_ids)
            mask[tokens] = b"\1" * (tokens.stop - tokens.start)
        first, last = mask.find(1), mask.rfind(1) + 1
        if first < 0:
            raise DataError(
                f"{prompt.where}: the assistant says nothing in this conversation, so there is nothing to learn"
            )
        split, end = offsets[first][0], offsets[last - 1][1]
        tokens, response, trained = array("i", ids[:last]), text[split:end], bytes(mask[first:last])
        if ids[last - 1] not in self._turns.end_ids and (stop := self._stop(prompt)) is not None:
            tokens.append(stop)
            response += self._tokenizer.decode([[stop]])[0]
            trained += b"\1"
        return Encoded(text[:split], tokens, response, trained)

    def _stop(self, prompt: Prompt) -> int | None:
        """What the model stops at after this conversation, whose last turn the template does not end."""
        last = next(message for message in reversed(as_messages(prompt)) if message["role"] == "assistant")
        calls_tools = bool(last.get("tool_calls"))
        if calls_tools not in self._stops:
            stop = self._stops[calls_tools] = learn_stop(self._template, self._tokenizer, calls_tools=calls_tools)
            if stop is None:
                log.warning(
                    "the model does not learn from these conversations to stop after %s: the chat template ends a last"
                    " turn with no token, nor begins the next message with one of the checkpoint's eos_token_id (first"
                    " seen in %s)",
                    "a tool call" if calls_tools else "an answer",
                    prompt.where,
                )
        return self._stops[calls_tools]

    @cached_property
    def _turns(self) -> Turns:
        return learn_turns(self._template, self._tokenizer)


@dataclass(frozen=True, slots=True)
class Turns:
    header: str  # what the prompt of a generation ends with; empty where the template knows no such thing
    lead: str  # then, what the template writes between the message before and the assistant's words
    earlier_end_ids: frozenset[int]  # tokens that end a turn with others after it
    end_ids: frozenset[int]  # these, and tokens that end the conversation's last turn


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
    return Turns(header, lead, frozenset(ends_earlier and ends_earlier | stops), stops | ends_earlier | ends_last)


def learn_stop(template: ChatTemplate, tokenizer: Tokenizer, *, calls_tools: bool) -> int | None:
    """Reads off the template which of the checkpoint's stop tokens the model says for whoever speaks after it: the
    result of a tool, or a user. None where it is no such token, or the template refuses such a conversation."""
    call = {"id": "123456789", "type": "function", "function": {"name": PROBE, "arguments": {}}}
    said = {"role": "assistant", "content": PROBE}
    after = {"role": "user", "content": PROBE}
    if calls_tools:
        said["tool_calls"] = [call]
        after = {"role": "tool", "content": PROBE, "tool_call_id": call["id"]}
    try:
        text = template.render([{"role": "user", "content": "x"}, said, after], add_generation_prompt=False)
    except DataError:
        return None
    between = text.split(PROBE)[1:-1]  # of which the last piece is that between what the two say
    return next((i for ids in tokenizer.encode(between[-1:]) for i in ids if i in tokenizer.stop_token_ids), None)


def tokens_of(turn: Turn, text: str, ids: Sequence[int], offsets: Sequence[Span], end_ids: frozenset[int]) -> slice:
    """The tokens of a turn: up to the first token after its words that ends it, which may be the one right after the
    message. Without such a token they are those of the message, less white space with which the template may close
    it."""
    first, words = (bisect_left(offsets, (character,)) for character in (turn.begin, turn.words))
    after = max(words, bisect_right(offsets, turn.end, key=lambda token: token[1]))
    end = min(turn.end, offsets[after][0]) if after < len(ids) else turn.end
    written = text[turn.words : end].rstrip()
    search = words if written else max(first, words - 1)  # the words themselves may end with it
    for position in range(search, min(after + 1, len(ids))):
        if ids[position] in end_ids:
            return slice(first, position + 1)
    return slice(first, bisect_left(offsets, (turn.words + len(written),)))


def with_probe(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the probe in place of all that the assistant says in it."""
    said = {"content": PROBE}
    if message.get("reasoning_content"):
        said["reasoning_content"] = PROBE
    if message.get("tool_calls"):
        said["tool_calls"] = [_call_with_probe(call) for call in message["tool_calls"]]
    return message | said


def _call_with_probe(call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call:
        return call | {"function": _call_with_probe(call["function"])}
    return call | {key: _probed(call[key]) for key in ("name", "arguments") if key in call}


def _probed(value: Any) -> Any:
    """The probe in place of every text in a value, so that templates treat it as they did."""
    if isinstance(value, str):
        return PROBE
    if isinstance(value, dict):
        return {key: _probed(inner) for key, inner in value.items()}
    return [_probed(inner) for inner in value] if isinstance(value, list) else value


def difference(text: str, other: str) -> Span:
    """The characters of `text` that are not the same in `other`, at the same place from the beginning or the end."""
    begin = common_prefix(text, other)
    return begin, len(text) - common_prefix(text[begin:][::-1], other[begin:][::-1])


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
