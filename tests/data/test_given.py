"""What a template is given of contents and tool calls that are as OpenAI's interface writes them."""

from __future__ import annotations

from functools import partial

import pytest

from slime.data.encode import ConversationEncoder, PromptEncoder
from slime.data.errors import DataError
from slime.data.prompts import Prompt
from slime.data.template import ChatTemplate
from tests.data import templates
from tests.data.test_encode import AGAIN, CALL, CALL_TEXT, USER, assistant, check, trained_runs


@pytest.fixture(scope="module")
def load(made_of):
    return partial(made_of, ConversationEncoder)


WIRE = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "left out"])
@pytest.mark.parametrize(
    ("template", "said", "stops"),
    [
        (templates.THINKING, f"<think>\n\n</think>\n\n{CALL_TEXT}", ("<|im_end|>",)),
        (
            templates.GLM,
            "\n<think></think>\n<tool_call>add\na=1\nb=1\n</tool_call><|observation|>",
            ("<|observation|>",),
        ),
        (templates.LLAMA, '{"name": "add", "parameters": {"a": 1, "b": 1}}<|eot_id|>', ("<|eot_id|>",)),
        (templates.ONE_HEADER, '<tool_call>add {"a": 1, "b": 1}</tool_call></s>', ("</s>",)),
    ],
    ids=["qwen", "glm", "llama", "deepseek"],
)
def test_tool_calls_as_openai_writes_them(load, template, said, stops, content):
    """A content of null and arguments that are a text: as "" and the object, or text, that the template takes."""
    tool = {"role": "tool", "content": "2", "tool_call_id": "call_1"}
    tokenizer, encoder = load(template, stops)
    written = [USER, {"role": "assistant", **content, "tool_calls": [WIRE]}, tool]
    read = [USER, assistant("", tool_calls=[CALL]), tool]
    prompts = [Prompt(written, "here"), Prompt(read, "there")]
    ours, theirs = encoder.encode(prompts)
    assert ours == theirs and trained_runs(tokenizer, ours) == [said]
    ours, theirs = PromptEncoder(tokenizer, ChatTemplate(tokenizer)).encode(prompts)
    assert ours == theirs and said in ours.prompt
    assert WIRE["function"]["arguments"] == '{"a": 1, "b": 1}' and CALL["function"]["arguments"] == {"a": 1, "b": 1}


def test_arguments_that_a_template_would_write_as_python_does_are_given_as_a_text(load):
    template = templates.THINKING.replace("call.arguments | tojson + '}", "call.arguments ~ '}")
    for call in (CALL, WIRE):
        said = f"<think>\n\n</think>\n\n{CALL_TEXT}"
        tokenizer, encoder = load(template)
        (encoded,) = encoder.encode([Prompt([USER, assistant("", tool_calls=[call])], "here")])
        assert trained_runs(tokenizer, encoded) == [said]


@pytest.mark.parametrize("arguments", ["a=1", "", "[1]", '"a"'])
def test_arguments_of_no_object_name_the_line_where_the_template_takes_objects(load, arguments):
    call = {"function": {"name": "add", "arguments": arguments}}
    prompt = Prompt([USER, assistant("", tool_calls=[WIRE, call])], "sft.jsonl:3")
    for template in (templates.THINKING, templates.GLM):
        tokenizer, encoder = load(template)
        for either in (encoder, PromptEncoder(tokenizer, ChatTemplate(tokenizer))):
            with pytest.raises(
                DataError, match=r"^sft.jsonl:3: message 1 calls 'add' with arguments that are a text, but"
            ):
                either.encode([prompt])
    said = f"""<tool_call>add {WIRE["function"]["arguments"]}</tool_call><tool_call>add {arguments}</tool_call></s>"""
    check(load, templates.ONE_HEADER, prompt.content, [said], stops=("</s>",))


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": ' * 100_000], ids=["lists", "objects"])
def test_arguments_that_are_nested_too_deep_are_of_no_object(load, arguments):
    call = {"function": {"name": "add", "arguments": arguments}}
    with pytest.raises(DataError, match=r"^sft.jsonl:3: message 1 calls 'add' with arguments that are a text, but"):
        load(templates.THINKING)[1].encode([Prompt([USER, assistant("", tool_calls=[call])], "sft.jsonl:3")])


def test_messages_that_are_nested_too_deep_to_be_written_name_the_line(load):
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    call = {"function": {"name": "add", "arguments": {"a": deep}}}
    with pytest.raises(DataError, match=r"^sft.jsonl:3: the chat template refuses the messages: maximum recursion"):
        load(templates.THINKING)[1].encode([Prompt([USER, assistant("", tool_calls=[call])], "sft.jsonl:3")])


# Contents in parts.


def in_parts(message):
    """As OpenAI's interface takes it: the same text, cut in two."""
    text = message["content"]
    return message | {"content": [{"type": "text", "text": piece} for piece in (text[:1], text[1:])]}


@pytest.mark.parametrize("template", [templates.TEXT_ALONE, templates.CHATML], ids=["left out", "refused"])
def test_texts_in_parts_are_texts_where_the_template_knows_no_parts(load, template):
    tokenizer, encoder = load(template)
    messages = [{"role": "system", "content": "be brief"}, USER, assistant("two"), {"role": "tool", "content": "12"}]
    messages += [assistant("one"), AGAIN, assistant("yes")]
    whole, parts = encoder.encode([Prompt(messages, "a"), Prompt(list(map(in_parts, messages)), "b")])
    assert whole == parts
    assert trained_runs(tokenizer, parts) == ["two<|im_end|>", "one<|im_end|>", "yes<|im_end|>"]
    prompts = PromptEncoder(tokenizer, ChatTemplate(tokenizer))
    whole, parts = prompts.encode([Prompt([USER], "a"), Prompt([in_parts(USER)], "b")])
    assert whole == parts and "one plus one?" in parts.prompt


def test_parts_that_a_template_knows_are_left_to_it(load):
    knows = "else message.content | map(attribute='text') | join"
    tokenizer, encoder = load(templates.TEXT_ALONE.replace("else ''", knows))
    image = {"type": "image", "text": "<image>"}
    (encoded,) = encoder.encode([Prompt([{"role": "user", "content": [image]}, in_parts(assistant("two"))], "a")])
    assert "<image>" in encoded.prompt and trained_runs(tokenizer, encoded) == ["two<|im_end|>"]


def test_a_part_that_is_no_text_names_the_line_where_there_is_room_for_text_alone(load):
    _, encoder = load(templates.TEXT_ALONE)
    image = {"type": "image_url", "image_url": {"url": "a.png"}}
    messages = [USER, assistant("two"), {"role": "user", "content": [image]}, assistant("yes")]
    with pytest.raises(DataError, match=r"^sft.jsonl:3: message 2 \(role 'user'\) has a part 'image_url'"):
        encoder.encode([Prompt(messages, "sft.jsonl:3")])
