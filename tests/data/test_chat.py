"""Conversations that go on by tokens: what was sampled stays, what others say is as the template writes it."""

from __future__ import annotations

from functools import partial

import pytest

from slime.data.chat import Chat
from slime.data.errors import DataError
from tests.data import templates

USER, AGAIN = {"role": "user", "content": "the quick fox?"}, {"role": "user", "content": "sure?"}
CALL = {"function": {"name": "add", "arguments": {"a": 1}}}
RESULTS = [{"role": "tool", "content": "46"}, {"role": "tool", "content": "12"}]


@pytest.fixture(scope="module")
def load(made_of):
    return partial(made_of, Chat)


@pytest.mark.parametrize(
    ("template", "stops", "sampled"),
    [
        (templates.CHATML, ("<|im_end|>",), "a dog<|im_end|>"),
        (templates.CHATML, ("<|im_end|>",), "a dog"),  # cut at the limit: the turn is ended for it
        (templates.MARKED, ("<|im_end|>",), "a dog<|im_end|>"),
        (templates.LLAMA, ("<|eot_id|>",), "a dog<|eot_id|>"),
        (templates.INSTRUCT, ("</s>",), " a dog</s>"),
        (templates.HEADERS_ONLY, ("<|user|>",), "a dog<|user|>"),
    ],
)
def test_the_next_question_as_the_template_writes_it_after_all_that_was_said(load, template, stops, sampled) -> None:
    tokenizer, chat = load(template, stops)
    (said,) = tokenizer.encode([sampled])
    tokens = chat.prompt([USER]) + said
    answer = {"role": "assistant", "content": "a dog"}
    tokens += chat.after(tokens, answer, [AGAIN])
    assert tokens == chat.prompt([USER, answer, AGAIN])
    assert chat.drift(tokens, [USER, answer, AGAIN]) is None


QWEN_CALLS = """<think>

</think>

Hm.
<tool_call>
{"name": "add", "arguments": {"a": 1}}
</tool_call><|im_end|>"""
GLM_CALLS = """
<think></think>
Hm.
<tool_call>add
a=1
</tool_call><|observation|>"""


@pytest.mark.parametrize(
    ("template", "stops", "sampled"),
    [(templates.THINKING, ("<|im_end|>",), QWEN_CALLS), (templates.GLM, ("<|user|>", "<|observation|>"), GLM_CALLS)],
)
def test_two_results_in_a_row_after_a_call(load, template, stops, sampled) -> None:
    tokenizer, chat = load(template, stops)
    (said,) = tokenizer.encode([sampled])
    tokens = chat.prompt([USER]) + said
    asked = {"role": "assistant", "content": "Hm.", "tool_calls": [CALL]}
    tokens += chat.after(tokens, asked, RESULTS)
    assert tokens == chat.prompt([USER, asked, *RESULTS])


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}], ids=["text", "object"])
@pytest.mark.parametrize(("template", "sampled"), [(templates.THINKING, QWEN_CALLS), (templates.GLM, GLM_CALLS)])
def test_a_call_goes_on_alike_whether_its_arguments_are_a_text_or_an_object(load, template, sampled, arguments) -> None:
    tokenizer, chat = load(template, ("<|im_end|>",) if template is templates.THINKING else ("<|observation|>",))
    tokens = chat.prompt([USER]) + tokenizer.encode([sampled])[0]
    call = {"function": CALL["function"] | {"arguments": arguments}}
    asked = {"role": "assistant", "content": "Hm.", "tool_calls": [call]}
    tokens += chat.after(tokens, asked, RESULTS)
    assert chat.drift(tokens, [USER, asked, *RESULTS]) is None


def test_a_call_that_the_model_garbled_is_no_error_but_where_the_template_makes_it_one(load) -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}
    assert load(templates.THINKING)[1].prompt([USER, asked, *RESULTS])
    said = r"message 1 calls 'add' with arguments that are a text, but not of a JSON object: str '\{'$"
    glm = load(templates.GLM)[1]
    with pytest.raises(DataError, match=rf"no attribute 'items'; {said}"):
        glm.prompt([USER, asked, *RESULTS])
    with pytest.raises(DataError, match=rf"no attribute 'items'; {said}"):
        glm.after(glm.prompt([USER]), asked, RESULTS)


def test_thinking_that_the_template_would_take_out_stays_and_is_told(load) -> None:
    tokenizer, chat = load(templates.THINKING)
    prompt = chat.prompt([USER])
    (said,) = tokenizer.encode(["<think>\nwords\n</think>\n\na dog<|im_end|>"])
    answer = {"role": "assistant", "content": "<think>\nwords\n</think>\n\na dog"}
    assert chat.drift(prompt + said, [USER, answer]) is None
    tokens = prompt + said + chat.after(prompt + said, answer, [AGAIN])
    assert tokens[: len(prompt + said)] == prompt + said
    assert chat.drift(tokens, [USER, answer, AGAIN]) == len(prompt)


def test_words_that_were_sampled_in_other_tokens_stay_and_are_told(load) -> None:
    tokenizer, chat = load(templates.CHATML)
    prompt = chat.prompt([USER])
    (dog,), (letters,) = tokenizer.encode(["brown"]), [[i for c in "brown" for i in tokenizer.encode([c])[0]]]
    assert len(dog) < len(letters)
    assert chat.drift(prompt + letters, [USER, {"role": "assistant", "content": "brown"}]) == len(prompt)


def test_thinking_that_the_prompt_opened_is_drift_where_earlier_turns_are_shown_without(load) -> None:
    tokenizer, chat = load(templates.FORCED_THINKING)
    prompt = chat.prompt([USER])
    (said,) = tokenizer.encode(["words</think>a dog<|im_end|>"])
    drift = chat.drift(prompt + said, [USER, {"role": "assistant", "content": "<think>\nwords</think>a dog"}])
    assert drift is not None and drift < len(prompt)


def test_a_template_that_does_not_show_the_end_of_a_turn(load) -> None:
    _, chat = load(templates.PLAIN, ("</s>",))
    with pytest.raises(DataError, match="does not show where a turn of the assistant ends"):
        chat.after([1], {"role": "assistant", "content": "a dog"}, [AGAIN])
