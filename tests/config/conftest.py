"""A model directory and prompt files, small but as a user would have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.config.checkpoints import QWEN3_30B_A3B, TINY, weight_shapes, write_weights


@pytest.fixture
def moe(tmp_path: Path) -> Path:
    """A directory that holds only the config.json of Qwen3-30B-A3B."""
    directory = tmp_path / "Qwen3-30B-A3B"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(QWEN3_30B_A3B))
    return directory


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A whole model directory; of its weights only the headers are read here."""
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(TINY))
    write_weights(directory / "model.safetensors", weight_shapes(TINY))
    (directory / "tokenizer.json").write_text("{}")
    return directory


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"input": "1+1=", "prompt": "1+1=", "label": "2"}\n')
    return file


@pytest.fixture
def complete(tiny: Path, prompts: Path) -> list[str]:
    """A command line that a run could start with: 4 prompts x 2 samples on one device, colocated."""
    return [
        "--hf-checkpoint", str(tiny), "--prompt-data", str(prompts), "--label-key", "label", "--rm-type", "exact_match",
        "--num-rollout", "3", "--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--colocate",
        "--actor-num-gpus-per-node", "1", "--rollout-max-response-len", "16",
    ]  # fmt: skip
