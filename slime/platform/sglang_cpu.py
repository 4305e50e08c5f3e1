"""SGLang on a machine without CUDA: what it needs patched, in its own processes only.

Invariants
- `patch()` runs at the top of the module that starts the server, before anything of SGLang is imported. Its workers are
  forked from that process, so they are patched as well.
- Nothing in site-packages is edited. Never call it in a process that trains.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

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

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", fork_workers, HookType.AROUND)


def fork_workers(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """SGLang spawns its workers, because CUDA does not outlive a fork. Without CUDA they may find imported what would
    take each of them seconds to import."""
    original(*args, **kwargs)
    multiprocessing.set_start_method("fork", force=True)


class _CudaRuntime:
    """By which SGLang pins the buffer of --enable-return-routed-experts, also where there is nothing to pin it for."""

    @staticmethod
    def cudaHostRegister(address: int, size: int, flags: int) -> int:
        return 0
