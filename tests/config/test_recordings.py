"""Recordings that a run would come to, before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.config import load, recordings
from tests.config.checkpoints import write_checkpoint


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Rollouts 0, 1 and 3; and a checkpoint after rollout 1."""
    for rollout in (0, 1, 3):
        (tmp_path / f"{rollout}.jsonl").touch()
    write_checkpoint(tmp_path / "checkpoints" / "iter_0000001", rollout_id=1)
    return tmp_path


def said(recorded: Path, *words: str, name: str = "{rollout_id}.jsonl", unsound: set[str] = frozenset()) -> list[str]:
    options = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--load-debug-rollout-data"]
    config = load([*options, str(recorded / name), *words])
    return [str(problem) for problem in recordings.look(config, unsound)]


def test_recordings_of_all_rollouts_are_fine(recorded):
    assert said(recorded, "--num-rollout", "2") == []
    assert said(recorded, "--num-epoch", "1") == []  # of which nobody knows how many rollouts it has
    assert said(recorded, "--num-rollout", "9", name="3.jsonl") == []


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        ("--num-rollout 3", "2.jsonl, which rollout 2 trains on\n", "give --num-rollout 2, or record them"),
        ("--num-rollout 6", "2.jsonl, which rollout 2 trains on, nor those of 2 later ones\n", "give --num-rollout 2"),
        ("--num-rollout 3 --start-rollout-id 2", "2.jsonl, which rollout 2 trains on\n", "record them with --save-deb"),
        ("--num-rollout 5 --start-rollout-id 3", "4.jsonl, which rollout 4 trains on\n", "give --num-rollout 4"),
    ],
)
def test_the_first_that_is_missing_is_named(recorded, words, what, fix):
    (text,) = said(recorded, *words.split())
    assert text.startswith(f"--load-debug-rollout-data: there is no file {recorded}/{what}") and fix in text


def test_a_run_that_goes_on_needs_what_is_still_to_come(recorded):
    (recorded / "0.jsonl").unlink()
    load_from = ["--load", str(recorded / "checkpoints"), "--num-rollout"]
    assert said(recorded, *load_from, "2") == []
    (text,) = said(recorded, *load_from, "4")
    assert "2.jsonl, which rollout 2 trains on\n" in text
    (recorded / "2.jsonl").touch()
    assert said(recorded, *load_from, "4") == []
    (text,) = said(recorded, *load_from, "2", "--finetune")
    assert "0.jsonl, which rollout 0 trains on" in text


def test_one_file_for_all_is_missing_once(recorded):
    (text,) = said(recorded, "--num-rollout", "9", name="x.jsonl")
    assert "x.jsonl, which rollout 0 trains on\n" in text


def test_what_is_wrong_itself_has_no_consequence(recorded):
    assert said(recorded, "--num-rollout", "6", unsound={"num_rollout"}) == []
    assert said(recorded, "--num-rollout", "6", "--load", str(recorded / "nowhere")) == []
