"""What a training process computes on: `--device` and this machine, resolved to a torch device and its collectives."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


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
