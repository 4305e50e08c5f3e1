"""Megatron's optimizer on the host (--optimizer-cpu-offload): made to resume, and to run where the model is on the
host, too.

It keeps a copy of each parameter that it finds on a GPU, steps the copy, and writes it back. Without a GPU, the
parameters that it is given stand for those on one: then it does the same work as on a GPU, and is tested by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from torch import Tensor


@contextmanager
def _on_a_gpu(parameters: list[Tensor]) -> Iterator[None]:
    """Inside, `is_cuda` is true of these tensors and of no others."""
    ids = set(map(id, parameters))
    torch.Tensor.is_cuda = property(lambda tensor: id(tensor) in ids)
    try:
        yield
    finally:
        del torch.Tensor.is_cuda  # what PyTorch itself says of a tensor is inherited, and back


def _take_master_weights(self: HybridDeviceOptimizer) -> None:
    """After a load. Megatron's own expects parameters in 16 bits, and not the float32 ones of its distributed
    optimizer."""
    for parameter, state in self.state.items():
        self.param_to_inner_param[parameter].data.copy_(state["master_param"])


HybridDeviceOptimizer._update_fp32_params_by_new_state = _take_master_weights

if not torch.cuda.is_available():
    _divide = HybridDeviceOptimizer._get_sub_optimizer_param_groups

    def _divide_among_devices(self: HybridDeviceOptimizer, offload_fraction: float) -> Any:
        with _on_a_gpu([parameter for group in self.param_groups for parameter in group["params"]]):
            return _divide(self, offload_fraction)

    HybridDeviceOptimizer._get_sub_optimizer_param_groups = _divide_among_devices
