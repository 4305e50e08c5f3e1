"""Chat templates: messages in, text out, exactly as transformers renders them (a test holds that), but for what
OpenAI's interface writes otherwise than a template reads it (see `ChatTemplate.given`).

Invariants: a template comes with the checkpoint and is not trusted, so it runs in Jinja's sandbox; the same arguments
give the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slime.data.errors import DataError
from slime.data.prompts import Messages, describe
from slime.data.tokenizer import Tokenizer

# Unicode's noncharacters, set aside for use inside a program: they are in no text.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
ARGUMENTS = {"word": "word"}  # of a tool call, to see how a template writes them

Span = tuple[int, int]  # characters, the end excluded


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %}: what the assistant generates. Its bounds are written into the text."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        opening, closing = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (OPEN, CLOSE))
        return [opening, *body, closing]


class ChatTemplate:
    """The template of a checkpoint, with the arguments of --apply-chat-template-kwargs."""

    def __init__(self, tokenizer: Tokenizer, kwargs: Mapping[str, Any] | None = None):
        self._variables = {**tokenizer.named_tokens, **(kwargs or {})}
        self._templates = compile_templates(tokenizer.templates)
        self._takes_parts: dict[str, bool] = {}  # of messages of a role
        self._takes_objects: dict[bool, bool] = {}  # as the arguments of a tool call; with tools and without

    def render(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, *, add_generation_prompt: bool
    ) -> str:
        """Raises DataError when the template refuses the messages."""
        return self.render_spans(messages, tools, add_generation_prompt=add_generation_prompt)[0]

    def render_spans(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, *, add_generation_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """The text, and the characters in it that the template marks as generated; none where it has no such marks."""
        given = self.given(messages, tools)
        try:
            return self._rendered(given, tools, add_generation_prompt=add_generation_prompt)
        except DataError as error:
            unread = next(_unread_arguments(given), None)
            if unread is None or not self._objects(tools):
                raise
            raise DataError(f"{error}; {unread}") from error

    def given(self, messages: Messages, tools: list[dict[str, Any]] | None = None, *, strict: bool = False) -> Messages:
        """What the template is given of messages, as of OpenAI's interface, so that SGLang's server would render the
        same: "" for a content that is null; the object for arguments of a tool call that are a text of one, or the text
        of an object where the template takes texts alone; a text for parts that it would not show.

        Raises DataError for parts that are no text in the last case; with `strict` also for arguments that are a text
        but of no object, where the template takes objects.
        """
        given = [self._with_content(i, message) for i, message in enumerate(messages)]
        if not any(message.get("tool_calls") for message in given):
            return given
        objects = self._objects(tools)
        read = read_arguments if objects else write_arguments
        given = [_with_arguments(message, read) if message.get("tool_calls") else message for message in given]
        if strict and objects and (unread := next(_unread_arguments(given), None)):
            raise DataError(unread)
        return given

    def _objects(self, tools: list[dict[str, Any]] | None) -> bool:
        """Whether the template reads arguments that are an object: it refuses none, nor writes it as Python does."""
        asked = bool(tools)
        if asked not in self._takes_objects:
            self._takes_objects[asked] = self._reads(ARGUMENTS, tools) or not self._reads(to_json(ARGUMENTS), tools)
        return self._takes_objects[asked]

    def _reads(self, arguments: Any, tools: list[dict[str, Any]] | None) -> bool:
        call = {"id": "123456789", "type": "function", "function": {"name": "word", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            return str(ARGUMENTS) not in self._rendered(messages, tools)[0]
        except DataError:
            return False

    def _with_content(self, i: int, message: dict[str, Any]) -> dict[str, Any]:
        """With one text in place of parts that the template would not show, or of nothing."""
        parts, role = message.get("content"), message.get("role", "")
        if parts is None:
            return message | {"content": ""}
        if not isinstance(parts, list):
            return message
        if role not in self._takes_parts:
            self._takes_parts[role] = self._shows_parts(role)
        if self._takes_parts[role]:
            return message
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        if other := [part for part, text in zip(parts, texts, strict=True) if not isinstance(text, str)]:
            kind = other[0].get("type") if isinstance(other[0], dict) else other[0]
            raise DataError(
                f"message {i} (role {role!r}) has a part {kind!r}; the chat template has room for text alone"
            )
        return message | {"content": "".join(texts)}

    def _shows_parts(self, role: str) -> bool:
        """Whether the template writes a part of text as it writes the text."""
        before = {"system": (), "user": ()}.get(role, ({"role": "user", "content": "x"},))
        after = [{"role": "user", "content": "x"}] if role == "system" else []
        contents: tuple[Any, ...] = ("word", [{"type": "text", "text": "word"}])
        try:
            alone, in_parts = (
                self._rendered([*before, {"role": role, "content": content}, *after]) for content in contents
            )
        except DataError:
            return False
        return alone == in_parts

    def _rendered(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, *, add_generation_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        template = self._templates.get("tool_use" if tools else "default", self._templates.get("default"))
        if template is None:
            raise DataError(
                f"the checkpoint has several chat templates ({', '.join(self._templates)}), but no default one"
            )
        try:
            text = template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except (TemplateError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"the chat template refuses the messages: {error}") from error
        return take_spans(text) if OPEN in text else (text, [])


def read_arguments(arguments: Any) -> Any:
    """The object that a text is of; what is none stays as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):  # the latter where it is nested too deep
        return arguments
    return read if isinstance(read, dict) else arguments


def write_arguments(arguments: Any) -> Any:
    return to_json(arguments) if isinstance(arguments, dict) else arguments


def _with_arguments(message: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return message | {"tool_calls": [_changed_call(call, change) for call in message["tool_calls"]]}


def _changed_call(call: Any, change: Callable[[Any], Any]) -> Any:
    """Of OpenAI's form, or what it has as `function` alone."""
    if not isinstance(call, dict):
        return call
    if "function" in call:
        return call | {"function": _changed_call(call["function"], change)}
    return call | {"arguments": change(call["arguments"])} if "arguments" in call else call


def _unread_arguments(messages: Messages) -> Iterator[str]:
    """What is wrong with arguments that are texts still."""
    for i, message in enumerate(messages):
        for call in message.get("tool_calls") or []:
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(arguments := function.get("arguments"), str):
                yield (
                    f"message {i} calls {function.get('name')!r} with arguments that are a text, but not of a JSON"
                    f" object: {describe(arguments)}"
                )


def compile_templates(sources: Mapping[str, str]) -> dict[str, Template]:
    """Raises DataError when there are none, or one of them is not valid."""
    if not sources:
        raise DataError("the checkpoint has no chat template (chat_template.jinja, or in tokenizer_config.json)")
    environment = make_environment()
    try:
        return {name: environment.from_string(source) for name, source in sources.items()}
    except TemplateError as error:
        raise DataError(f"the checkpoint's chat template is not valid: {error}") from error


def take_spans(marked: str) -> tuple[str, list[Span]]:
    """Takes the marks of `GenerationTag` out of the text."""
    before, *generated = marked.split(OPEN)
    text, spans = before, []
    for piece in generated:
        inside, mark, after = piece.partition(CLOSE)
        if not mark or CLOSE in after:
            raise DataError("the chat template nests {% generation %} blocks")
        spans.append((len(text), len(text) + len(inside)))
        text += inside + after
    return text, spans


def make_environment() -> ImmutableSandboxedEnvironment:
    """What chat templates are written for: the names and settings of transformers' `apply_chat_template`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> None:
    raise TemplateError(message)
