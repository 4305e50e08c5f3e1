from __future__ import annotations

import sys
import types

import pytest
import torch

from slime.platform.device import Peak, claim, peak
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
    from slime.platform import megatron_cpu

    sys.modules["megatron.core"] = types.ModuleType("megatron.core")
    try:
        megatron_cpu.enable()
    except RuntimeError as error:
        return str(error), torch.zeros(1).type()
    return None


def test_megatron_must_not_be_imported_before():
    ((message, type_name),) = run_ranks(enabled_late, 1, spawned=True)
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
        "wandb": "wandb" in sys.modules,
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
        "wandb": False,
    }


@without_gpu
def test_the_peak_of_a_cpu_is_measured():
    of_cpu = peak(torch.device("cpu"), torch.float32)
    assert (of_cpu.device, of_cpu.source) == ("CPU", "measured in float32")
    assert 1e8 < of_cpu.flops < 1e14
    assert peak(torch.device("cpu"), torch.float32) == of_cpu  # once in a process


@pytest.mark.parametrize(
    ("name", "flops"), [("NVIDIA H200", 989e12), ("NVIDIA H20", 148e12), ("NVIDIA H100 PCIe", 756e12)]
)
def test_the_peak_of_a_gpu_is_that_of_its_data_sheet(monkeypatch, name, flops):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak(torch.device("cuda"), torch.bfloat16) == Peak(name, flops, "data sheet")
