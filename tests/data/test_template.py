"""Rendering and tokenising give what transformers gives, id by id."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

os.environ["HF_HUB_OFFLINE"] = "1"

from slime.data.encode import ConversationEncoder, PromptEncoder
from slime.data.errors import DataError
from slime.data.prompts import Prompt
from slime.data.template import ChatTemplate, take_spans
from slime.data.tokenizer import Tokenizer
from slime.tiny import write_checkpoint
from tests.data import templates
from tests.data.checkpoints import write_tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "description": "a < b & 'ü'", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, "<é>"]}}}
CONVERSATIONS = [
    [{"role": "user", "content": "47+85="}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": " \n hi\n"}],
    [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\none and one\n</think>\n\n2"},
        {"role": "user", "content": "and 2+3? 漢字 🙂"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5"},
        {"role": "tool", "content": "five"},
        {"role": "assistant", "content": "<think>\n5\n</think>\n\n5"},
    ],
]


TEMPLATES = {
    "chatml": templates.CHATML,
    "thinking": templates.THINKING,
    "forced thinking": templates.FORCED_THINKING,
    "lines": templates.LINES,
}


@pytest.fixture(scope="module", params=["tiny", *TEMPLATES])
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    if request.param == "tiny":
        return write_checkpoint(path)
    return write_tokenizer(path, TEMPLATES[request.param])


@pytest.fixture(scope="module")
def theirs(directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def ours(directory):
    return Tokenizer.load(directory)


@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}])
def test_prompts_are_those_of_transformers(theirs, ours, kwargs):
    encoder = PromptEncoder(ours, ChatTemplate(ours, kwargs))
    for messages in CONVERSATIONS:
        for tools in (None, TOOLS):
            (encoded,) = encoder.encode([Prompt(messages, "here", tools=tools)])
            arguments = dict(tools=tools, add_generation_prompt=True, **kwargs)
            assert encoded.prompt == theirs.apply_chat_template(messages, tokenize=False, **arguments)
            assert encoded.tokens.tolist() == theirs.apply_chat_template(messages, **arguments)["input_ids"]


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_any_text_is_encoded_and_decoded_as_by_transformers(theirs, ours, texts):
    assert ours.encode(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    for skip in (False, True):
        ids = ours.encode(texts)
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.batch_decode(ids, skip_special_tokens=skip)


def test_stop_tokens_and_named_tokens_are_those_of_the_checkpoint(theirs, ours):
    assert ours.stop_token_ids == {theirs.eos_token_id}
    assert ours.named_tokens == dict(theirs.special_tokens_map.items())
    assert set(theirs.all_special_ids) <= ours.special_ids
    assert len(ours) == len(theirs)


def test_marked_spans_give_the_mask_of_transformers(tmp_path):
    from transformers import AutoTokenizer

    directory = write_tokenizer(tmp_path, templates.MARKED)
    theirs, ours = AutoTokenizer.from_pretrained(directory), Tokenizer.load(directory)
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "quick"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "brown fox"},
    ]
    (encoded,) = ConversationEncoder(ours, ChatTemplate(ours)).encode([Prompt(messages, "here")])
    expected = theirs.apply_chat_template(messages, return_assistant_tokens_mask=True)
    n = len(encoded.tokens)
    mask = [0] * (n - encoded.response_length) + list(encoded.loss_mask)
    assert encoded.tokens.tolist() == expected["input_ids"][:n]
    assert mask == expected["assistant_masks"][:n] and not any(expected["assistant_masks"][n:])


def test_take_spans():
    assert take_spans("plain") == ("plain", [])
    assert take_spans("a\ufdd0bc\ufdd1d\ufdd0\ufdd1\ufdd0e\ufdd1") == ("abcde", [(1, 3), (4, 4), (4, 5)])
    with pytest.raises(DataError, match="nests"):
        take_spans("\ufdd0a\ufdd0b\ufdd1\ufdd1")


def test_what_a_template_says_against_messages_names_the_line(tmp_path):
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, templates.INSTRUCT, ("</s>",)))
    prompt = Prompt([{"role": "tool", "content": "x"}], "data.jsonl:7")
    with pytest.raises(
        DataError, match=r"data.jsonl:7: the chat template refuses.*only users and assistants speak here, not tool"
    ):
        PromptEncoder(tokenizer, ChatTemplate(tokenizer)).encode([prompt])


def test_a_template_runs_in_a_sandbox(tmp_path):
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, "{{ messages.__class__.__mro__ }}{{ messages.clear() }}"))
    with pytest.raises(DataError, match=r"unsafe|not safely"):
        ChatTemplate(tokenizer).render([{"role": "user", "content": "x"}], add_generation_prompt=True)


def test_a_template_that_is_not_valid(tmp_path):
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, "{% for %}"))
    with pytest.raises(DataError, match="chat template is not valid"):
        ChatTemplate(tokenizer)


def test_a_checkpoint_without_a_template(tmp_path):
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, None))
    with pytest.raises(DataError, match="has no chat template"):
        ChatTemplate(tokenizer)


def test_named_templates_in_tokenizer_config(tmp_path):
    directory = write_tokenizer(tmp_path, None)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate(Tokenizer.load(directory))
    message = [{"role": "user", "content": "x"}]
    assert template.render(message, add_generation_prompt=True) == "plain"
    assert template.render(message, TOOLS, add_generation_prompt=True) == "with tools"


def test_responses_lose_the_token_that_ended_them_and_nothing_else(tmp_path):
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, templates.CHATML, ("<|im_end|>", "</s>")))
    texts = ["<think>a</think>b<|im_end|>", "b</s>", "b<|im_end|><|im_end|>", "<|im_end|>b", "b<s>", ""]
    ids = tokenizer.encode(texts)
    assert tokenizer.decode_responses(ids) == ["<think>a</think>b", "b", "b<|im_end|>", "<|im_end|>b", "b<s>", ""]
    extra = tokenizer.encode(["<s>"])[0]
    assert tokenizer.decode_responses(ids[4:5], stop_token_ids=extra) == ["b"]
    assert tokenizer.decode_responses(ids[3:4], skip_special_tokens=True) == ["b"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not valid JSON"),
        ("tokenizer_config.json", "[" * 5000, r"tokenizer_config\.json: not valid JSON \(maximum recursion depth"),
        ("tokenizer_config.json", '{"chat_template": 3}', r"tokenizer_config\.json: its chat_template is"),
        ("tokenizer_config.json", '{"chat_template": ["x"]}', "is neither a text nor a list of named ones"),
        ("tokenizer_config.json", '{"added_tokens_decoder": [3]}', r"its added_tokens_decoder gives no text by id"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "y"}}}', "gives no text by id"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"3": {}}}', "gives no text by id"),
        ("tokenizer_config.json", '{"eos_token": 3}', r"tokenizer_config\.json: its eos_token is no text"),
        ("special_tokens_map.json", '{"bos_token": {"content": 3}}', r"tokens_map\.json: its bos_token is no text"),
        ("generation_config.json", "{", r"generation_config\.json: not valid JSON"),
        ("generation_config.json", '{"eos_token_id": "2"}', r"generation_config\.json: its eos_token_id is"),
        ("generation_config.json", '{"eos_token_id": [[2]]}', r"eos_token_id is neither an id nor a list of them"),
        ("config.json", '{"eos_token_id": 2.5}', r"/config\.json: its eos_token_id is neither an id"),
    ],
)
def test_a_broken_tokenizer_names_the_file(tmp_path, file, content, message):
    directory = write_tokenizer(tmp_path, templates.CHATML)
    if file == "special_tokens_map.json":
        (directory / "tokenizer_config.json").write_text("{}")
    (directory / file).write_text(content)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(directory)


def test_no_tokenizer(tmp_path):
    with pytest.raises(DataError, match="no such directory"):
        Tokenizer.load(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"no tokenizer.json, and nothing that transformers can make one of"):
        Tokenizer.load(tmp_path)


def test_an_older_format_is_converted(tmp_path):
    """vocab.json and merges.txt, as GPT-2 has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    (tmp_path / "vocab.json").write_text(
        json.dumps({token: i for i, token in enumerate([*alphabet, "ab", "<|endoftext|>"])})
    )
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode(["abc"]) == [[len(alphabet), alphabet.index("c")]]
    assert tokenizer.stop_token_ids == {len(alphabet) + 1}
