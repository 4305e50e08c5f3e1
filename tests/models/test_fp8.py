"""A checkpoint as DeepSeek publishes them: weights in fp8 with scales, routers' biases in float32, layers for
multi-token prediction. Read, trained on two ranks or not at all, and saved in bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slime.models import Shard, family_of, load_hf, read_hf_config, save_hf
from slime.models.checkpoint import Checkpoint
from tests.distributed import run_ranks
from tests.models.tiny import make_checkpoint, megatron_model

BLOCK = (16, 8)
MTP = "model.layers.4.eh_proj.weight"  # the tiny models have layers 0 to 3


def quantised(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices in fp8, but for embeddings and routers; with scales that differ from block to block."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and "_proj" in name:
            rows, columns = (-(-size // block) for size, block in zip(tensor.shape, BLOCK, strict=True))
            found[name] = tensor.to(torch.float8_e4m3fn)
            found[f"{name}_scale_inv"] = torch.rand(rows, columns, generator=generator) + 0.5
        else:
            found[name] = tensor if name.endswith("e_score_correction_bias") else tensor.bfloat16()
    return found


def dequantised(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By its definition: each element times its block's scale."""
    found = {}
    for name, tensor in tensors.items():
        if (scales := tensors.get(f"{name}_scale_inv")) is not None:
            row = torch.arange(tensor.shape[0])[:, None] // BLOCK[0]
            column = torch.arange(tensor.shape[1]) // BLOCK[1]
            found[name] = (tensor.float() * scales[row, column]).bfloat16()
        elif not name.endswith("_scale_inv"):
            found[name] = tensor
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_checkpoint(tmp_path_factory.mktemp("fp8"), "deepseek_v3")
    tensors = load_file(directory / "model.safetensors") | {MTP: torch.randn(32, 64)}
    save_file(quantised(tensors), directory / "model.safetensors")
    config = read_hf_config(directory) | {
        "dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)},
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def saved(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "model"
    run_ranks(load_and_save, 2, source, directory)
    return directory


def load_and_save(source: Path, directory: Path) -> None:
    family = family_of(read_hf_config(source))
    with megatron_model(family, torch.bfloat16, tp=2) as chunks:
        shard = Shard(family, chunks)
        load_hf(shard, source)
        save_hf(shard, directory, source)


@pytest.mark.parametrize(
    "index",
    [(), (slice(3, 40),), (slice(16, 32),), (slice(None), slice(5, 21)), (slice(17, 33), slice(8, 9))],
    ids=str,
)
def test_any_slice_of_a_matrix(source, index):
    name = "model.layers.0.mlp.gate_proj.weight"
    whole = dequantised(load_file(source / "model.safetensors"))[name]
    assert torch.equal(Checkpoint(source, BLOCK).fetch(name, index).bfloat16(), whole[index])


def test_saved_weights_are_the_dequantised_ones(saved, source):
    expected = dequantised(load_file(source / "model.safetensors"))
    found = load_file(saved / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_biases_of_routers_keep_their_precision(saved):
    biases = {n: t for n, t in load_file(saved / "model.safetensors").items() if n.endswith("e_score_correction_bias")}
    assert len(biases) == 3
    assert {tensor.dtype for tensor in biases.values()} == {torch.float32}


def test_layers_for_multi_token_prediction_are_passed_on(saved):
    assert MTP in load_file(saved / "model.safetensors")


def test_the_saved_config_does_not_speak_of_fp8(saved, source):
    expected: dict[str, Any] = read_hf_config(source)
    del expected["quantization_config"]
    assert read_hf_config(saved) == expected


def test_a_missing_scale_is_said(source, tmp_path):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.0.mlp.gate_proj.weight"
    del tensors[f"{name}_scale_inv"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert Checkpoint(tmp_path, BLOCK).problem(name, (48, 32)) == (
        f"{name} in model.safetensors is in fp8, but {name}_scale_inv is missing"
    )
