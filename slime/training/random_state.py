"""The random states of a training process, as tensors of bytes: PyTorch's generators, and those Megatron keeps by
name."""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import Tensor


def random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states | {f"megatron.{name}": state.cpu() for name, state in get_cuda_rng_tracker().get_states().items()}


def set_random_states(states: dict[str, Tensor]) -> None:
    states = {name: state.cpu() for name, state in states.items()}
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    tracker = get_cuda_rng_tracker()
    tracker.set_states(
        {name.removeprefix("megatron."): state for name, state in states.items() if name.startswith("megatron.")}
    )
