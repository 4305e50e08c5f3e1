"""SGLang on a machine without CUDA: what it needs patched, in its own processes only.

Invariants
- `patch()` runs at the top of the module that starts the server, before anything of SGLang is imported. The processes
  that the server spawns import that module again, so each of them is patched before it unpickles its work.
- Nothing in site-packages is edited. Never call it in a process that trains.
"""

from __future__ import annotations

import os
import sys

import torch

from slime.platform import sglang_cpu_attention, sglang_cpu_stubs


def patch() -> None:
    """Idempotent within a process."""
    # Without it SGLang finds no platform, and asks torch for CUDA devices.
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    # SGLang's dumper (srt/debug_utils/dumper.py) imports Megatron where it finds it: seconds and memory for nothing,
    # and the stand-ins would mislead it. None makes the import fail as if it were not installed.
    sys.modules["megatron"] = None  # type: ignore[assignment]
    torch.cuda.cudart = _CudaRuntime
    sglang_cpu_stubs.install()
    sglang_cpu_attention.install()


class _CudaRuntime:
    """By which SGLang pins the buffer of --enable-return-routed-experts, also where there is nothing to pin it for."""

    @staticmethod
    def cudaHostRegister(address: int, size: int, flags: int) -> int:
        return 0
