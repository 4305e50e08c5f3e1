"""What a training process computes on: `--device` and this machine, resolved to a torch device and its collectives."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache

import torch

SHEETS = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
}
"""FLOP/s in dense bfloat16 products of matrices, by a part of the GPU's name; the first that fits."""


@dataclass(frozen=True, slots=True)
class Device:
    torch: torch.device
    backend: str  # of torch.distributed

    @property
    def is_cuda(self) -> bool:
        return self.torch.type == "cuda"

    def synchronize(self) -> None:
        """Waits for what was launched, so that a clock read next measures it."""
        if self.is_cuda:
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s that a device could do, and where the figure is from: what MFU is a share of."""

    device: str
    flops: float
    source: str


def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """In products of matrices: of a GPU in bfloat16 as its maker says, else as measured here, once in a process."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    if device.type == "cuda" and dtype == torch.bfloat16:
        for part, flops in SHEETS.items():
            if part in name:
                return Peak(name, flops, "data sheet")
    return Peak(name, _measured(device, dtype), f"measured in {str(dtype).removeprefix('torch.')}")


@cache
def _measured(device: torch.device, dtype: torch.dtype) -> float:
    """The best of three, since others may be at work meanwhile."""
    size = 8192 if device.type == "cuda" else 512
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    seconds = []
    for _ in range(4):  # the first makes the library ready
        start = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # waits for the product
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds[1:])


def claim(requested: str, *, local_rank: int = 0, backend: str = "nccl") -> Device:
    """The device of this process, made current.

    Args:
        requested: auto, cpu or cuda; auto takes CUDA where a GPU is visible.
        local_rank: counts the training processes that see the same GPUs.
        backend: of torch.distributed on GPUs; on a CPU it is always gloo.

    Raises:
        RuntimeError: cuda is asked for and no GPU is visible, or cpu and there are GPUs that Megatron would take.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        if requested == "cuda":
            raise RuntimeError(
                f"--device cuda: PyTorch {torch.__version__} sees no GPU"
                + (f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else "")
                + "; use --device cpu, or install PyTorch for CUDA"
            )
        return Device(torch.device("cpu"), "gloo")
    if requested == "cpu":
        raise RuntimeError(
            "--device cpu on a machine with GPUs: hide them from the training processes with CUDA_VISIBLE_DEVICES=''"
        )
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return Device(device, backend)
