"""One real Ray for all tests of this room that need one in their own process."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from slime.cluster.session import Session


@pytest.fixture(scope="package")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    config: Any = SimpleNamespace(run_dir=tmp_path_factory.mktemp("run"), device="cpu", cpu_slots=4)
    with Session(config) as session:
        yield session
