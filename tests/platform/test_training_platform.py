from __future__ import annotations

import pytest
import torch

from slime.platform.device import claim
from tests.distributed import run_ranks

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
@pytest.mark.parametrize("requested", ["auto", "cpu"])
def test_a_cpu_takes_gloo_whatever_is_asked_for(requested):
    device = claim(requested, backend="nccl")
    assert (device.torch.type, device.backend, device.is_cuda) == ("cpu", "gloo", False)


@without_gpu
def test_cuda_without_a_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(RuntimeError, match=r"sees no GPU \(CUDA_VISIBLE_DEVICES='3'\)"):
        claim("cuda")


def enabled_late():
    import sys
    import types

    from slime.platform import megatron_cpu

    sys.modules["megatron.core"] = types.ModuleType("megatron.core")
    try:
        megatron_cpu.enable()
    except RuntimeError as error:
        return str(error), torch.zeros(1).type()
    return None


def test_megatron_must_not_be_imported_before():
    ((message, type_name),) = run_ranks(enabled_late, 1)
    assert "before megatron is imported" in message
    assert type_name == "torch.FloatTensor"  # nothing was patched


def what_is_patched():
    import slime.training  # noqa: F401

    first = torch.zeros
    import slime.platform.megatron_cpu as megatron_cpu

    megatron_cpu.enable()
    return {
        "again": torch.zeros is first,
        "type": torch.zeros(1, dtype=torch.bfloat16).type(),
        "cast": torch.ones(1).type(torch.int64).dtype,
        "device": torch.tensor([1], device="cuda").device.type,
        "elsewhere": torch.zeros(1, device="meta").device.type,
        "available": torch.cuda.is_available(),
    }


@without_gpu
def test_what_megatron_sees_on_a_cpu():
    (seen,) = run_ranks(what_is_patched, 1)
    assert seen == {
        "again": True,
        "type": "torch.cuda.BFloat16Tensor",
        "cast": torch.int64,
        "device": "cpu",
        "elsewhere": "meta",
        "available": False,
    }
