"""Loading and exporting under every parallel layout: equality with the checkpoint and with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file

from slime.models import Shard, export_hf, family_of, load_hf, read_hf_config
from tests.distributed import run_ranks
from tests.models.tiny import KINDS, make_checkpoint, megatron_logits, megatron_model, reference_logits

WORLD = 4  # ranks; where a layout needs fewer, the rest are data-parallel replicas
CASES = [  # kind of model, layout
    ("dense", {}),
    ("tied", {}),
    ("moe", {}),
    ("moe, some layers dense", {}),
    ("dense", {"tp": 2}),
    ("tied", {"tp": 2}),
    ("one group", {"tp": 2}),
    ("dense", {"pp": 2}),
    ("tied", {"pp": 2}),
    ("tied", {"pp": 2, "vpp": 2}),
    ("moe", {"pp": 2, "vpp": 2}),
    ("moe", {"ep": 2}),
    ("moe", {"tp": 2, "etp": 2}),
    ("moe, some layers dense", {"tp": 2, "ep": 2}),
    ("tied", {"tp": 2, "pp": 2}),
    ("moe", {"tp": 2, "ep": 2, "etp": 2}),
    ("moe, some layers dense", {"pp": 2, "ep": 2}),
    ("llama", {"tp": 2, "pp": 2}),
    ("llama 3.1", {"tp": 2, "pp": 2}),
    ("qwen2", {"tp": 2, "pp": 2}),
    ("qwen2 tied", {"tp": 2, "pp": 2}),
    ("glm4", {"tp": 2, "pp": 2}),
    ("glm4_moe", {}),
    ("glm4_moe", {"tp": 2, "pp": 2}),
    ("glm4_moe", {"tp": 2, "ep": 2}),
    ("glm4_moe without qk-norm", {"pp": 2, "ep": 2}),
    ("deepseek_v3", {}),
    ("deepseek_v3", {"tp": 2, "pp": 2}),
    ("deepseek_v3", {"tp": 2, "ep": 2, "etp": 2}),
    ("moonlight", {"pp": 2, "ep": 2}),
    ("moonlight", {"tp": 2, "pp": 2, "vpp": 2}),
    ("kimi_k2", {"tp": 2, "pp": 2}),
]
BUCKET = 12_000  # bytes: several buckets, and some tensors that are larger


def name_of(case: tuple[str, dict[str, int]]) -> str:
    return f"{case[0]}: {' '.join(f'{k}{v}' for k, v in case[1].items()) or 'replicas'}"


class CountingReader:
    """safetensors' file, counting the bytes of what is read from it."""

    total = 0

    def __init__(self, *args: Any, **kwargs: Any):
        self.file = open_file(*args, **kwargs)

    def keys(self) -> list[str]:
        return self.file.keys()

    def get_slice(self, name: str) -> CountingSlice:
        return CountingSlice(self.file.get_slice(name))


class CountingSlice:
    def __init__(self, tensor: Any):
        self.tensor = tensor
        self.get_shape, self.get_dtype = tensor.get_shape, tensor.get_dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        part = self.tensor[index]
        CountingReader.total += part.nbytes
        return part


open_file = safetensors.safe_open


def load_and_export(checkpoints: dict[str, Path], cases: list[tuple[str, dict[str, int]]]) -> list[dict[str, Any]]:
    """On each rank: what happened in each case."""
    safetensors.safe_open = CountingReader
    outcomes = []
    for kind, layout in cases:
        family = family_of(read_hf_config(checkpoints[kind]))
        with megatron_model(family, **layout) as chunks:
            shard = Shard(family, chunks)
            CountingReader.total = 0
            bytes_read = load_hf(shard, checkpoints[kind])
            own = [bucket_copy(b) for b in export_hf(shard, BUCKET)]
            outcomes.append(
                {
                    "pp_rank": shard.pipeline.rank,
                    "bytes_read": bytes_read,
                    "bytes_seen": CountingReader.total,
                    "bytes_held": sum(entry.tensor.nbytes for entry in shard.entries),
                    "own": own,
                    "again": [bucket_copy(b) for b in export_hf(shard, BUCKET)],
                    "all": [bucket_copy(b) for b in export_hf(shard, BUCKET, across_pp=True)],
                    "logits": megatron_logits(chunks),
                }
            )
    return outcomes


def bucket_copy(bucket: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor.clone()) for name, tensor in bucket]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make_checkpoint(tmp_path_factory.mktemp("hf"), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def outcomes(checkpoints: dict[str, Path]) -> dict[str, list[dict[str, Any]]]:
    """Case -> outcome of each rank. One start of the processes for all cases."""
    by_rank = run_ranks(load_and_export, WORLD, checkpoints, CASES, deadline=300)
    return {name_of(case): [rank[i] for rank in by_rank] for i, case in enumerate(CASES)}


cases = pytest.mark.parametrize("case", CASES, ids=name_of)


@cases
def test_logits_equal_those_of_transformers(case, outcomes, checkpoints):
    expected = reference_logits(checkpoints[case[0]])
    logits = [rank["logits"] for rank in outcomes[name_of(case)] if rank["logits"] is not None]
    assert logits
    for of_rank in logits:
        torch.testing.assert_close(of_rank[:, : expected.shape[1]], expected, rtol=0, atol=1e-5)


@cases
def test_every_rank_gets_the_whole_checkpoint_back_bit_for_bit(case, outcomes, checkpoints):
    expected = load_file(checkpoints[case[0]] / "model.safetensors")
    for rank in outcomes[name_of(case)]:
        pairs = [pair for bucket in rank["all"] for pair in bucket]
        assert sorted(name for name, _ in pairs) == sorted(expected)
        for name, tensor in pairs:
            assert torch.equal(tensor, expected[name]), name


@cases
def test_stages_share_out_the_checkpoint(case, outcomes, checkpoints):
    expected = load_file(checkpoints[case[0]] / "model.safetensors")
    ranks = outcomes[name_of(case)]
    by_stage = {rank["pp_rank"]: rank["own"] for rank in ranks}
    assert sorted(name for own in by_stage.values() for bucket in own for name, _ in bucket) == sorted(expected)
    for rank in ranks:
        for bucket, of_stage in zip(rank["own"], by_stage[rank["pp_rank"]], strict=True):
            for (name, tensor), (name_of_stage, _) in zip(bucket, of_stage, strict=True):
                assert name == name_of_stage
                assert torch.equal(tensor, expected[name]), name


@cases
def test_buckets_are_bounded_and_as_many_on_every_rank(case, outcomes):
    ranks = outcomes[name_of(case)]
    for across in ("own", "all"):
        assert len({len(rank[across]) for rank in ranks}) == 1
        for bucket in ranks[0][across]:
            assert len(bucket) <= 1 or sum(tensor.nbytes for _, tensor in bucket) <= BUCKET


@cases
def test_order_is_the_same_at_every_export(case, outcomes):
    for rank in outcomes[name_of(case)]:
        first, second = ([[name for name, _ in bucket] for bucket in rank[export]] for export in ("own", "again"))
        assert first == second


@cases
def test_a_rank_reads_no_more_than_it_holds(case, outcomes):
    for rank in outcomes[name_of(case)]:
        assert rank["bytes_seen"] == rank["bytes_read"] <= rank["bytes_held"]
