"""Prompt sets: which keys a row must have, and of what kind (cases 1 to 3)."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slime.data.errors import DataError
from slime.data.prompts import Keys, Prompt, PromptSet

KEYS = Keys(input="question", label="answer")
USER = {"role": "user", "content": "1+1?"}


def write(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_all_fields_of_a_prompt(tmp_path):
    tool = {"type": "function", "function": {"name": "add"}}
    file = write(tmp_path / "a.jsonl", {"question": [USER], "answer": 2, "metadata": {"level": 1}, "tools": [tool]})
    (prompt,) = PromptSet(file, KEYS)
    assert prompt == Prompt([USER], f"{file}:1", label=2, metadata={"level": 1}, tools=[tool])


def test_what_may_be_left_out(tmp_path):
    file = write(tmp_path / "a.jsonl", {"input": "1+1?", "metadata": None, "tools": None})
    (prompt,) = PromptSet(file)
    assert prompt == Prompt("1+1?", f"{file}:1", label=None, metadata={}, tools=None)


def test_several_files_follow_each_other(tmp_path):
    write(tmp_path / "a.jsonl", *({"input": f"a{i}"} for i in range(3)))
    pq.write_table(pa.Table.from_pylist([{"input": f"b{i}"} for i in range(5)]), tmp_path / "b.parquet")
    prompts = PromptSet([f"{tmp_path / 'a.jsonl'}@[1:]", str(tmp_path / "b.parquet"), f"{tmp_path / 'a.jsonl'}@[:1]"])
    assert [prompt.content for prompt in prompts] == ["a1", "a2", "b0", "b1", "b2", "b3", "b4", "a0"]
    assert prompts[2].where.endswith("b.parquet: row 0")
    with pytest.raises(IndexError):
        prompts[8]


def test_messages_of_a_parquet_file_lose_the_keys_that_only_others_have(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    pq.write_table(pa.Table.from_pylist([{"input": [USER, call]}]), tmp_path / "a.parquet")
    (prompt,) = PromptSet(str(tmp_path / "a.parquet"))
    assert prompt.content == [USER, call]


def test_tools_may_be_a_text_of_json(tmp_path):
    (prompt,) = PromptSet(write(tmp_path / "a.jsonl", {"input": "x", "tools": '[{"name": "add"}]'}))
    assert prompt.tools == [{"name": "add"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": 2, "text": "1+1?"}, "no key 'question'; the keys are 'answer', 'text' .--input-key"),
        ({"question": "1+1?", "text": "2"}, "no key 'answer'; the keys are 'question', 'text' .--label-key"),
        ({"question": "1+1?", "answer": None}, "'answer' is null; the keys are 'question', 'answer'"),
        ({"question": 7, "answer": 2}, "'question' must be a text or a list of messages, not int 7"),
        ({"question": "", "answer": 2}, "'question' is empty"),
        ({"question": [], "answer": 2}, "'question' is a list without messages"),
        ({"question": ["hi"], "answer": 2}, "'question', message 0 must be an object .* not str 'hi'"),
        ({"question": [USER, {"content": "x"}], "answer": 2}, "message 1 has no 'role'; its keys are 'content'"),
        ({"question": [{"role": "user"}], "answer": 2}, "message 0 .role 'user'. has neither a 'content'"),
        (
            {"question": [{"role": "user", "content": 5}], "answer": 2},
            "message 0 .role 'user'. has neither a 'content'",
        ),
        ({"question": "x", "answer": 2, "metadata": "no"}, "'metadata' must be an object, not str 'no'"),
        ({"question": "x", "answer": 2, "tools": "no"}, "'tools' is a text, but not of JSON"),
        (
            {"question": "x", "answer": 2, "tools": {"name": "add"}},
            "'tools' must be a list of tool definitions, not dict",
        ),
    ],
)
def test_an_unsound_row_is_named_when_the_set_is_opened(tmp_path, row, message):
    file = write(tmp_path / "a.jsonl", {"question": "1+1?", "answer": 2}, row)
    with pytest.raises(DataError, match=f"a.jsonl:2: .*{message}"):
        PromptSet(file, KEYS)


def test_a_malformed_line_ends_it_unless_skipping_is_asked_for(tmp_path, caplog):
    file = write(tmp_path / "a.jsonl", {"input": "a"}, '{"input": "b"\n', {"input": "c"}, "\n", "d\n")
    with pytest.raises(DataError, match=r"a.jsonl:2: not valid JSON"):
        PromptSet(file)
    prompts = PromptSet(file, skip_malformed=True)
    assert [prompt.content for prompt in prompts] == ["a", "c"] and prompts.num_skipped == 2
    assert prompts[1].where == f"{file}:3"
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [f"{file}:2", f"{file}:5"]


def test_a_row_that_is_nested_too_deep_is_malformed(tmp_path):
    file = write(tmp_path / "a.jsonl", {"input": "a"}, '{"input": ' + "[" * 100_000 + "\n")
    prompts = PromptSet(file, skip_malformed=True)
    assert [prompt.content for prompt in prompts] == ["a"] and prompts.num_skipped == 1


def test_skipping_does_not_skip_rows_that_lack_a_key(tmp_path):
    file = write(tmp_path / "a.jsonl", "no\n", {"text": "a"})
    with pytest.raises(DataError, match=r"a.jsonl:2: no key 'input'"):
        PromptSet(file, skip_malformed=True)


def test_a_file_of_nothing_but_malformed_lines(tmp_path):
    with pytest.raises(DataError, match="all 2 rows are malformed"):
        PromptSet(write(tmp_path / "a.jsonl", "a\n", "b\n"), skip_malformed=True)


def test_bad_rows_outside_of_the_slice_do_not_matter(tmp_path):
    file = write(tmp_path / "a.jsonl", "no\n", {"input": "a"}, {})
    assert [prompt.content for prompt in PromptSet(f"{file}@[1:2]")] == ["a"]


def test_no_files():
    with pytest.raises(DataError, match="no prompt files"):
        PromptSet([])
