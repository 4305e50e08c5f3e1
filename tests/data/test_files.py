"""Prompt files and their rows: slices, and what is said about bad ones."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.data.errors import DataError
from slime.data.files import JsonLines, Parquet, open_prompt_file, split_slice


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """The numbers 0..9, in both formats; the lines of the one have blank lines between them."""
    directory = tmp_path_factory.mktemp("ten")
    rows = [{"n": n} for n in range(10)]
    (directory / "ten.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), directory / "ten.parquet", row_group_size=3)
    return directory


bound = st.none() | st.integers(-12, 12)


@given(bound, bound, st.sampled_from(["ten.jsonl", "ten.parquet"]))
@settings(max_examples=150, deadline=None)
def test_slices_mean_what_they_mean_in_python(ten, first, last, name):
    text = f"{'' if first is None else first}:{'' if last is None else last}"
    expected = list(range(10))[first:last]
    if not expected:
        with pytest.raises(DataError, match="the slice selects no rows"):
            open_prompt_file(f"{ten / name}@[{text}]")
        return
    file = open_prompt_file(f"{ten / name}@[{text}]")
    assert [file[i]["n"] for i in range(len(file))] == expected
    where = f"{ten / name}:{2 * expected[-1] + 1}" if name.endswith("jsonl") else f"{ten / name}: row {expected[-1]}"
    assert file.where(len(file) - 1) == where


@pytest.mark.parametrize("slice", ["[3]", "[1:2:3]", "[a:b]", "[]"])
def test_what_is_no_slice(slice):
    with pytest.raises(DataError, match="is not a slice of the form"):
        split_slice(f"file.jsonl@{slice}")


def test_an_at_sign_elsewhere_belongs_to_the_name():
    path, rows = split_slice("a@b/c@[x].jsonl")
    assert str(path) == "a@b/c@[x].jsonl" and rows == slice(None)


def test_types_of_rows_are_kept(tmp_path):
    row = {"prompt": [{"role": "user", "content": "ü"}], "label": 1.5, "metadata": {"deep": [1, None]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert JsonLines(tmp_path / "a.jsonl")[0] == Parquet(tmp_path / "a.parquet")[0] == row


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1', r"bad.jsonl:3: not valid JSON \(Expecting ',' delimiter.*\): \{\"a\": 1"),
        ("[1]", "bad.jsonl:3: a line must be a JSON object, not list"),
        ("x", "bad.jsonl:3: not valid JSON"),
        ('{"a": ' + "[" * 100_000, r"bad.jsonl:3: not valid JSON \(.*recursion.*\): \{\"a\": \["),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    (tmp_path / "bad.jsonl").write_text(f'{{"a": 0}}\n\n{line}\n')
    with pytest.raises(DataError, match=message):
        open_prompt_file(str(tmp_path / "bad.jsonl"))[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": "\xff"}\n', r"bad.jsonl:2: not text in UTF-8 \(byte 16 is 0xff\)"),
        (b'{"a": 1}\n\x89PNG\r\n\x1a\n', r"bad.jsonl:2: not text in UTF-8 \(byte 9 is 0x89\)"),
        (b'{"a": 1}\nab\x1b[2J\x00\n', r"bad.jsonl:2: not text \(byte 11 is 0x1b\)"),
    ],
)
def test_what_is_no_text_is_said_with_the_byte_and_not_printed(tmp_path, content, message):
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_prompt_file(str(tmp_path / "bad.jsonl"))[1]
    assert str(caught.value).isprintable()


def test_a_byte_order_mark_is_not_part_of_the_first_row(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert open_prompt_file(str(tmp_path / "a.jsonl"))[0] == {"a": 1}


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.jsonl").write_text(" \n")
    (tmp_path / "text.parquet").write_text("no")
    (tmp_path / "table.csv").write_text("a,b")
    (tmp_path / "folder.jsonl").mkdir()
    expected = {
        "missing.jsonl": "missing.jsonl: no such file",
        "empty.jsonl": "empty.jsonl: the file has no rows",
        "text.parquet": "text.parquet: not a Parquet file",
        "table.csv": "prompt files are .jsonl .* or .parquet, not .csv",
        "folder.jsonl": "is a directory",
    }
    for name, message in expected.items():
        with pytest.raises(DataError, match=message):
            open_prompt_file(str(tmp_path / name))
