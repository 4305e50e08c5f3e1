"""Saving: what transformers can load again bit for bit, written whole or not at all."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from slime.models import CheckpointError, Shard, family_of, load_hf, read_hf_config, save_hf
from tests.distributed import run_ranks
from tests.models.tiny import make_checkpoint, megatron_model

TOKENIZER = {
    "tokenizer.json": "{}",
    "tokenizer_config.json": '{"a": 1}',
    "merges.txt": "a b",
    "chat_template.jinja": "{{ messages }}",
}


def save_all(source: Path, work: Path) -> dict[str, Any]:
    """Saves in every way; the directories are looked at afterwards, the messages returned."""
    family = family_of(read_hf_config(source))
    with megatron_model(family, torch.float32, tp=2) as chunks:
        shard = Shard(family, chunks)
        load_hf(shard, source)
        save_hf(shard, work / "new" / "deep", source)
        save_hf(shard, work / "many", source, file_bytes=20_000)
        save_hf(shard, work / "earlier", source)
        save_hf(shard, work / "killed", source)
        messages = {}
        for name, directory, lender in [
            ("foreign", work / "foreign", source),
            ("source", source, source),
            ("no config", work / "x", work / "foreign"),
            ("below a file", work / "file" / "x", source),
        ]:
            messages[name] = failure(shard, directory, lender)
        # A disk that is full before the weights are written.
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, hard))
        messages["full disk"] = failure(shard, work / "kept", source)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return messages


def failure(shard: Shard, directory: Path, source: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        save_hf(shard, directory, source)
    return str(error.value)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_checkpoint(
        tmp_path_factory.mktemp("hf"), "moe", torch.bfloat16, max_shard_size="30KB"
    )  # with an index
    for name, text in TOKENIZER.items():
        (directory / name).write_text(text)
    (directory / "optimizer.pt").touch()
    return directory


@pytest.fixture(scope="module")
def tensors(source: Path) -> dict[str, torch.Tensor]:
    return tensors_in(source)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("work")
    for name in ("earlier", "kept"):
        (work / name).mkdir()
        (work / name / "config.json").write_text("{}")
        (work / name / "of the earlier one").touch()
    (work / ".killed.partial").mkdir()
    (work / ".killed.partial" / "0").write_text("half")
    (work / "foreign").mkdir()
    (work / "foreign" / "thesis.tex").touch()
    (work / "file").touch()
    return work


@pytest.fixture(scope="module")
def messages(source: Path, work: Path, tensors: dict[str, torch.Tensor]) -> list[dict[str, str]]:
    return run_ranks(save_all, 2, source, work)


def tensors_in(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}


def assert_same(directory: Path, expected: dict[str, torch.Tensor]) -> None:
    found = tensors_in(directory)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name


def test_bit_for_bit_in_the_dtype_of_the_source(messages, work, tensors):
    assert_same(work / "new" / "deep", tensors)


def test_transformers_loads_it(messages, work, tensors):
    from transformers import AutoModelForCausalLM

    _, report = AutoModelForCausalLM.from_pretrained(work / "many", output_loading_info=True)
    assert not any(report.values())


def test_companions_are_copied_and_nothing_else(messages, source, work):
    directory = work / "new" / "deep"
    assert {path.name for path in directory.iterdir()} == {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        *TOKENIZER,
    }
    for name in ("config.json", *TOKENIZER):
        assert (directory / name).read_bytes() == (source / name).read_bytes()


def test_all_files_may_be_read_by_whom_the_umask_allows(messages, work, tmp_path):
    (tmp_path / "any").touch()
    allowed = (tmp_path / "any").stat().st_mode
    assert {path.name for path in (work / "new" / "deep").iterdir() if path.stat().st_mode != allowed} == set()


def test_large_models_are_spread_over_files_with_an_index(messages, work, tensors):
    files = sorted(path.name for path in (work / "many").glob("*.safetensors"))
    assert files == [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    index = json.loads((work / "many" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file for file in files for name in load_file(work / "many" / file)}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert max(sum(t.nbytes for t in load_file(work / "many" / file).values()) for file in files) <= 20_000
    assert_same(work / "many", tensors)


def test_an_earlier_checkpoint_is_replaced(messages, work, tensors):
    assert not (work / "earlier" / "of the earlier one").exists()
    assert_same(work / "earlier", tensors)


def test_the_remains_of_a_killed_save_do_no_harm(messages, work, tensors):
    assert_same(work / "killed", tensors)


def test_nothing_is_left_beside(messages, work):
    assert sorted(path.name for path in work.iterdir()) == [
        "earlier",
        "file",
        "foreign",
        "kept",
        "killed",
        "many",
        "new",
    ]


def test_an_earlier_checkpoint_stays_when_the_disk_is_full(messages, work):
    assert sorted(path.name for path in (work / "kept").iterdir()) == ["config.json", "of the earlier one"]


def test_other_people_s_files_stay(messages, work):
    assert [path.name for path in (work / "foreign").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ("foreign", "it holds files but no config.json"),
        ("source", "that is where the model came from"),
        ("no config", "should lend its config.json"),
        ("below a file", "Not a directory"),
        ("full disk", "File too large"),
    ],
)
def test_every_rank_hears_of_a_failure(messages, case, complaint):
    for rank in messages:
        assert "the model can't be saved to" in rank[case]
        assert complaint in rank[case]
