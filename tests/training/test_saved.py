"""What is wrong with a checkpoint whose files are not as they were written. In a rank: training patches torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint

from tests.distributed import run_ranks


def said_of(directory: Path, spoils: list[Callable[[Path], None]]) -> list[str]:
    """What is said of a checkpoint, sound at first, when each of these has been done to it, one after the other."""
    from slime.models import CheckpointError
    from slime.training.saved import Saved, damaged_files

    checkpoint.save({"weight": torch.arange(1000.0)}, checkpoint_id=directory, no_dist=True)
    assert damaged_files(directory) == []
    said = []
    for spoil in spoils:
        spoil(directory)
        with pytest.raises(CheckpointError) as refused:
            Saved(directory).load({})
        said.append(str(refused.value))
    return said


def said_of_directories_that_are_gone(directory: Path) -> list[str]:
    """What is said when a file of a checkpoint can't be written: into directories that are, and are not, there."""
    import errno
    import os

    from slime.models import CheckpointError
    from slime.training.checkpoint import _explained

    said = []
    for partial in (directory / ".partial", directory / "gone" / "there" / ".partial"):
        with pytest.raises(CheckpointError) as refused, _explained(partial):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        said.append(str(refused.value))
    return said


def cut_weights(directory: Path) -> None:
    with weights_of(directory).open("r+b") as file:
        file.truncate(weights_of(directory).stat().st_size - 1)


def remove_weights(directory: Path) -> None:
    weights_of(directory).unlink()


def cut_metadata(directory: Path) -> None:
    with (directory / ".metadata").open("r+b") as file:
        file.truncate(20)


def empty_metadata(directory: Path) -> None:
    (directory / ".metadata").write_bytes(b"")


def remove_metadata(directory: Path) -> None:
    (directory / ".metadata").unlink()


def weights_of(directory: Path) -> Path:
    (file,) = directory.glob("*.distcp")
    return file


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    spoils = [cut_weights, remove_weights, cut_metadata, empty_metadata, remove_metadata]
    (said,) = run_ranks(said_of, 1, tmp_path_factory.mktemp("saved"), spoils)
    return dict(zip((spoil.__name__ for spoil in spoils), said, strict=True))


def test_a_file_that_is_cut_short_is_named_and_so_is_one_that_is_missing(said):
    size = int(said["cut_weights"].split(" of ")[-1])
    assert said["cut_weights"].endswith(f" is damaged: __0_0.distcp has {size - 1} bytes of {size}")
    assert said["remove_weights"].endswith(" is damaged: there is no file __0_0.distcp")


@pytest.mark.parametrize("how", ["cut_metadata", "empty_metadata"])
def test_metadata_that_is_cut_short_is_named(said, how):
    assert "its file .metadata can't be read" in said[how]


def test_metadata_that_is_missing_is_named(said):
    assert "there is no file .metadata" in said["remove_metadata"]


def test_a_directory_that_a_node_does_not_see_is_told(tmp_path):
    there, gone = run_ranks(said_of_directories_that_are_gone, 1, tmp_path)[0]
    assert there.startswith(f"can't write a checkpoint to {tmp_path}: [Errno 5] Input/output error (")
    assert gone.startswith(f"can't write a checkpoint to {tmp_path}/gone/there: there is no such directory on ")
    assert "; all nodes must share that of --save (" in gone and "The checkpoint before is as it was" in gone
