"""Checkpoints that are not what they should be: one message with all that is wrong, and the model untouched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slime.config import architecture, weights
from slime.models import CheckpointError, Family, ModelError, Shard, export_hf, family_of, load_hf, read_hf_config
from tests.distributed import run_ranks
from tests.models.tiny import KINDS, make_checkpoint, megatron_model

NORM, HEAD, UP = "model.norm.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"


def drop_and_reshape(directory: Path) -> None:
    change(
        directory,
        lambda tensors: (
            {n: t[:-1] if n == UP else t for n, t in tensors.items() if n != NORM} | {"extra": torch.ones(1)}
        ),
    )


def quantise(directory: Path) -> None:
    change(directory, lambda tensors: tensors | {NORM: tensors[NORM].to(torch.float8_e4m3fn)})


def cut_off(directory: Path) -> None:
    data = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(data[: len(data) // 2])


def remove_weights(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def index(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def index_absent_files(directory: Path) -> None:
    index(directory, {NORM: "model-00002-of-00003.safetensors", HEAD: "model-00003-of-00003.safetensors"})


def index_wrongly(directory: Path) -> None:
    names = load_file(directory / "model.safetensors").keys()
    change(directory, lambda tensors: {n: t for n, t in tensors.items() if n != HEAD})
    index(directory, dict.fromkeys(names, "model.safetensors"))


def index_garbage(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text("{")


def repeat(directory: Path) -> None:
    shutil.copy(directory / "model.safetensors", directory / "other.safetensors")


def change(directory: Path, how: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(how(load_file(directory / "model.safetensors")), directory / "model.safetensors")


BAD: dict[Callable[[Path], None], list[str]] = {  # what was done to the checkpoint -> what the message says
    drop_and_reshape: [
        "  extra in model.safetensors has no place in the model",
        f"  {UP} in model.safetensors has shape (47, 32), the model wants (48, 32)",
        f"  {NORM} is missing",
    ],
    quantise: [f"{NORM} in model.safetensors has dtype F8_E4M3"],
    cut_off: ["model.safetensors is not a whole safetensors file"],
    remove_weights: [
        "has no weights (no *.safetensors): it holds config.json, generation_config.json, pytorch_model.bin"
    ],
    shutil.rmtree: ["has no weights (no *.safetensors): the directory does not exist"],
    index_absent_files: [
        "names files that are not there: model-00002-of-00003.safetensors, model-00003-of-00003.safetensors"
    ],
    index_wrongly: [f"{HEAD} is not in model.safetensors, though model.safetensors.index.json says so"],
    index_garbage: ["model.safetensors.index.json is not an index of safetensors files"],
    repeat: ["is in both model.safetensors and other.safetensors"],
}


def load_all(good: Path, bad: dict[str, Path], half: Path) -> dict[str, Any]:
    """What loading each of them says, and whether the parameters were left alone."""
    family = family_of(read_hf_config(good))
    found: dict[str, Any] = {}
    with megatron_model(family) as chunks:
        shard = Shard(family, chunks)
        before = [parameter.clone() for parameter in chunks[0].parameters()]
        for name, directory in bad.items():
            with pytest.raises(CheckpointError) as error:
                load_hf(shard, directory)
            untouched = all(map(torch.equal, before, chunks[0].parameters()))
            found[name] = (str(error.value), untouched)
        load_hf(shard, half)
        found["half, loaded as float"] = [(n, t.clone()) for bucket in export_hf(shard, 1 << 20) for n, t in bucket]
        found["moved and wrapped"] = export_wrapped(family, shard, chunks[0], good)
        chunks[0].register_parameter("adapter", torch.nn.Parameter(torch.zeros(1)))
        with pytest.raises(ModelError) as error:
            Shard(family, chunks)
        found["unknown parameter"] = str(error.value)
    with megatron_model(family, torch.bfloat16) as chunks:
        shard = Shard(family, chunks)
        load_hf(shard, good)
        found["float, loaded as half"] = [(n, t.clone()) for bucket in export_hf(shard, 1 << 20) for n, t in bucket]
    return found


def export_wrapped(
    family: Family, shard: Shard, chunk: torch.nn.Module, directory: Path
) -> list[dict[str, torch.Tensor]]:
    """Loaded through the wrapper; exported through it, and by the shard that was made before."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    options = DistributedDataParallelConfig(use_distributed_optimizer=True)  # moves all parameters into one buffer
    wrapped = Shard(family, [DistributedDataParallel(chunk.config, options, chunk)])
    load_hf(wrapped, directory)
    return [{n: t.clone() for bucket in export_hf(s, 1 << 20) for n, t in bucket} for s in (wrapped, shard)]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "good": make_checkpoint(tmp_path_factory.mktemp("hf"), "dense"),
        "half": make_checkpoint(tmp_path_factory.mktemp("hf"), "dense", torch.bfloat16, max_shard_size="30KB"),
    }


@pytest.fixture(scope="module")
def found(directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bad = {}
    for spoil in BAD:
        bad[spoil.__name__] = tmp_path_factory.mktemp("bad") / spoil.__name__
        shutil.copytree(directories["good"], bad[spoil.__name__])
        spoil(bad[spoil.__name__])
    return run_ranks(load_all, 1, directories["good"], bad, directories["half"])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_at_the_headers_finds_nothing_wrong_with_a_checkpoint_of_any_family(kind, tmp_path):
    """What --check says of weights; that it finds what is wrong, tests/config/test_weights.py holds."""
    make_checkpoint(tmp_path, kind)
    assert list(weights.lacking(tmp_path)) == list(weights.unsound(tmp_path, architecture.read(tmp_path))) == []


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_message(spoil, found):
    message, _ = found[spoil.__name__]
    for line in BAD[spoil]:
        assert line in message


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_nothing_was_loaded(spoil, found):
    _, untouched = found[spoil.__name__]
    assert untouched


def test_nothing_else_is_complained_about(found):
    message, _ = found["drop_and_reshape"]
    assert len(message.splitlines()) == 1 + len(BAD[drop_and_reshape])


def test_parameters_that_the_family_does_not_know(found):
    assert "has no HF tensor for these parameters: adapter" in found["unknown parameter"]


def test_half_precision_from_several_files_into_float(found, directories):
    expected = {n: t for path in directories["half"].glob("*.safetensors") for n, t in load_file(path).items()}
    assert len(list(directories["half"].glob("*.safetensors"))) > 1
    assert dict(found["half, loaded as float"]).keys() == expected.keys()
    for name, tensor in found["half, loaded as float"]:
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name].float()), name


def test_float_into_half_precision(found, directories):
    expected = load_file(directories["good"] / "model.safetensors")
    for name, tensor in found["float, loaded as half"]:
        assert torch.equal(tensor, expected[name].bfloat16()), name


def test_parameters_that_megatron_moved(found, directories):
    expected = load_file(directories["good"] / "model.safetensors")
    for tensors in found["moved and wrapped"]:
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())
