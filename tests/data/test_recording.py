"""A recorded rollout reads back as it was, to the last bit, and is never taken for something else."""

from __future__ import annotations

import math
import resource

import numpy as np
import pytest

from slime.data.errors import DataError
from slime.data.recording import read_rollout, write_rollout
from slime.data.sample import Sample, Status


def test_reads_back_to_the_last_bit(tmp_path):
    experts = np.arange(12, dtype=np.int16).reshape(2, 3, 2)
    groups = [
        [
            Sample(
                group_index=0,
                index=0,
                prompt=[{"role": "user", "content": "wéll \N{SNOWMAN}\n"}],
                tokens=[1, 2, 3],
                response_length=2,
                rollout_log_probs=[-0.1 - 0.2, -5e-324],
                reward={"score": 1 / 3, "worst": -math.inf},
                status=Status.TRUNCATED,
                rollout_routed_experts=experts,
                metadata={"seen": [], "share": np.float32(0.1)},
            ),
            [Sample(index=1, reward=0.0), Sample(index=2)],  # one that fanned out
        ],
        [],
    ]
    path = tmp_path / "deep" / "rollout-3.jsonl"
    write_rollout(path, groups)
    (first, fanned), second = read_rollout(path)
    assert (fanned, second) == (groups[0][1], [])
    assert np.array_equal(first.rollout_routed_experts, experts) and first.rollout_routed_experts.dtype == np.int16
    assert first.metadata["share"] == float(np.float32(0.1))
    first.rollout_routed_experts, first.metadata = experts, groups[0][0].metadata
    assert first == groups[0][0]
    assert [file.name for file in path.parent.iterdir()] == ["rollout-3.jsonl"]


def test_half_a_surrogate_pair_reads_back_in_a_file_of_sound_text(tmp_path):
    """JSON can say it, so labels and metadata may hold it."""
    sample = Sample(index=0, label="\ud83d", metadata={"wéll": "\ude00 \\ud83d"})
    write_rollout(tmp_path / "a.jsonl", [[sample]])
    assert read_rollout(tmp_path / "a.jsonl") == [[sample]]
    assert r'"label": "\ud83d"' in (text := (tmp_path / "a.jsonl").read_text(encoding="utf-8")) and "wéll" in text


def test_what_cannot_be_written_is_named(tmp_path):
    with pytest.raises(DataError, match=r"sample 4 .*can't be recorded: no JSON stands for a set"):
        write_rollout(tmp_path / "a.jsonl", [[Sample(index=4, metadata={"seen": {1}})]])
    assert not (tmp_path / "a.jsonl").exists()


def test_what_the_disk_has_no_room_for_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "0.jsonl"
    write_rollout(path, [[Sample(prompt="short")]])
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(
            DataError, match=rf"can't write {path}: File too large\. What was saved before is as it was"
        ):
            write_rollout(path, [[Sample(prompt="long" * 1000)]])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["0.jsonl"] and path.read_bytes() == before


def test_what_is_no_recording_is_refused_with_its_line(tmp_path):
    with pytest.raises(DataError, match="there is no such recorded rollout"):
        read_rollout(tmp_path / "absent.jsonl")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1+1="}\n')
    with pytest.raises(DataError, match=r"prompts.jsonl:1: not a recorded rollout"):
        read_rollout(prompts)
    write_rollout(tmp_path / "b.jsonl", [[Sample()]])
    text = (tmp_path / "b.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(text[:-9])
    with pytest.raises(DataError, match=r"b.jsonl:2: "):
        read_rollout(tmp_path / "b.jsonl")


def test_a_file_that_is_not_whole_is_refused(tmp_path):
    path = tmp_path / "c.jsonl"
    write_rollout(path, [[Sample(index=0)], [Sample(index=1)]])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match=r"c.jsonl: it holds 1 groups, where its first line says 2"):
        read_rollout(path)
    path.write_text("")
    with pytest.raises(DataError, match=r"c.jsonl:1: not a recorded rollout"):
        read_rollout(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1}', 'a group is a list of samples, not {"a": 1}'),
        ('["a"]', 'a group is a list of samples, not "a"'),
        ("[" * 100_000, "recursion"),
        ('[{"index": 3, "status": "completed", "masks": []}]', "masks"),
        (
            '[{"index": 3, "tokens": [1, 2], "response_length": 1, "loss_mask": [1, 1], "status": "completed"}]',
            "sample 3 .*: loss_mask has 2 entries, the response has 1 tokens",
        ),
        (
            '[{"index": 3, "tokens": [1, 2], "rollout_routed_experts": [[[0]]], "status": "completed"}]',
            "'list' object has no attribute 'ndim'",
        ),
    ],
    ids=["a dict", "a text", "deep", "an unknown field", "a mask that does not fit", "experts that are no array"],
)
def test_a_damaged_line_is_named(tmp_path, line, message):
    path = tmp_path / "d.jsonl"
    write_rollout(path, [[Sample()], []])
    head, first, _ = path.read_text().splitlines()
    path.write_text(f"{head}\n{first}\n{line}\n")
    with pytest.raises(DataError, match=rf"d.jsonl:3: .*{message}"):
        read_rollout(path)
