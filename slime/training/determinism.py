"""--deterministic-mode: the same options, data and seed give the same weights, to the last bit, on the same kind of
machine."""

from __future__ import annotations

import os

import torch

ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may sum in another order each time
    "NCCL_ALGO": "Ring",  # else chosen by what is fastest at the moment
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",  # transformer-engine's attention
}


def make_deterministic() -> None:
    """For this process, before it touches a device. What is set in the environment already is left as it is."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
