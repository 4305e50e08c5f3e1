"""One real Ray for all tests of a module that need one in their own process: it has room for one, and what a session
sets in the environment would reach the drivers of test_session.py."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from slime.cluster.session import Session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    config: Any = SimpleNamespace(run_dir=tmp_path_factory.mktemp("run"), device="cpu", cpu_slots=4)
    with Session(config) as session:
        yield session
