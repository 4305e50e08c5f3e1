"""These tests want a GPU; scripts/gpu-check.sh runs them. Elsewhere they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime.tiny import Tiny, make_tiny

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """As wide as the kernels want it: heads of 128."""
    return make_tiny(tmp_path_factory.mktemp("gpu") / "tiny", "sort", width=8)
