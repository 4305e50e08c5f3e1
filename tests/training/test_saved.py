"""What is wrong with a checkpoint whose files are not as they were written."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import checkpoint

from slime.models import CheckpointError
from slime.training.saved import Saved, damaged_files


@pytest.fixture
def saved(tmp_path):
    checkpoint.save({"weight": torch.arange(1000.0)}, checkpoint_id=tmp_path, no_dist=True)
    return Saved(tmp_path)


def test_a_whole_checkpoint_has_no_damaged_files(saved):
    assert damaged_files(saved.path) == []


def test_a_file_that_is_cut_short_is_named_and_so_is_one_that_is_missing(saved):
    (file,) = saved.path.glob("*.distcp")
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(size - 1)
    with pytest.raises(CheckpointError, match=rf"{saved.path} is damaged: {file.name} has {size - 1} bytes of {size}$"):
        saved.load({})
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"{saved.path} is damaged: there is no file {file.name}$"):
        saved.load({})


@pytest.mark.parametrize("length", [0, 20])
def test_metadata_that_is_cut_short_is_named(saved, length):
    with (saved.path / ".metadata").open("r+b") as opened:
        opened.truncate(length)
    with pytest.raises(CheckpointError, match=r"its file .metadata can't be read"):
        saved.load({})
    (saved.path / ".metadata").unlink()
    with pytest.raises(CheckpointError, match=r"there is no file \.metadata"):
        saved.load({})
