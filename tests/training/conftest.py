"""Small random models that tests of training share. Nobody writes into their directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.tiny import write_checkpoint


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> str:
    return str(tiny_model)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same architecture with other weights."""
    return str(write_checkpoint(tmp_path_factory.mktemp("other") / "model", seed=1))


@pytest.fixture(scope="session")
def moe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("moe") / "model", moe=True))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what the tests of a file write."""
    return tmp_path_factory.mktemp("training")
