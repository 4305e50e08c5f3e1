"""The state of Adam inside Megatron's optimizers: made before it is needed, taken over, and reset.

Without transformer-engine and apex, Megatron's inner optimizer is PyTorch's, which it expects to have made a step
before its state is asked for, and whose `step` is a tensor of its own where Megatron's checkpoints have one number for
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.optimizer import MegatronOptimizer, distrib_optimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from torch import Tensor

ROUNDED = 0.01  # above what bfloat16 may be off, 2**-8
MOMENTS = ("exp_avg", "exp_avg_sq")


def prime(optimizer: MegatronOptimizer) -> None:
    """Gives parameters without a state that of step 0, from which PyTorch's Adam goes on as if it had none."""
    for inner in _inner(optimizer):
        if not isinstance(inner, torch.optim.Adam):
            continue
        for group in inner.param_groups:
            for parameter in group["params"]:
                if not inner.state[parameter]:
                    inner.state[parameter] = {"step": torch.tensor(0.0)} | {
                        name: torch.zeros_like(parameter.data) for name in MOMENTS
                    }
    for hybrid in _hybrids(optimizer):
        hybrid._sync_sub_optimizers_state_to_hdo()


def load(optimizer: MegatronOptimizer, stored: dict[Any, Any]) -> None:
    """Takes over the state of a checkpoint, and no options: learning rates, betas and the like stay this run's.

    Megatron would take the stored groups of parameters as they are, and looks them up by learning rates. All of them
    have the same count of steps.
    """
    for one, state in zip(*_chained(optimizer, stored), strict=True):
        inner = state.get("optimizer", state)
        counts = [{"step": group["step"]} for group in inner["param_groups"] if "step" in group]
        own = one.optimizer.state_dict()["param_groups"]
        inner["param_groups"] = [group | counts[0] if counts else group for group in own]
    optimizer.load_state_dict(stored)
    _separate_steps(optimizer)


def unlike_weights(optimizer: MegatronOptimizer, stored: dict[Any, Any]) -> Iterator[str]:
    """Names of parameters of the distributed optimizer whose stored master weights are not of the weights that the
    model has; those in 16 bits are rounded."""
    for one, state in zip(*_chained(optimizer, stored), strict=True):
        if not isinstance(one, distrib_optimizer.DistributedOptimizer):
            continue
        of_buffers = (parameter for buffer in one.buffers for parameter in buffer.param_index_map)
        for index, parameter in enumerate(of_buffers):
            master = state["param_state"][index]["param"]
            if not one._is_distopt_quantized_param(parameter) and not torch.allclose(
                master.float(), parameter.detach().cpu().float(), rtol=ROUNDED, atol=1e-6
            ):
                yield one._param_name(parameter).rpartition("module.")[2]


def _chained(optimizer: MegatronOptimizer, stored: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Megatron's optimizers, of dense parameters, of experts, ..., and the state that is stored of each."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    return chained, [stored] if len(chained) == 1 else [stored[index] for index in range(len(chained))]


def _separate_steps(optimizer: MegatronOptimizer) -> None:
    """Gives each parameter a count of steps of its own: Megatron gives all of them one tensor, which PyTorch's Adam
    then raises once for each of them."""
    for inner in _inner(optimizer):
        for state in inner.state.values():
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].clone()


def reset(optimizer: MegatronOptimizer) -> None:
    """To that of step 0, in place. Master weights and learning rates stay."""
    for inner in _inner(optimizer):
        for state in inner.state.values():
            for name in ("step", *MOMENTS):
                if isinstance(state.get(name), Tensor):
                    state[name].zero_()
        for group in inner.param_groups:
            if "step" in group:  # transformer-engine's Adam counts in the group
                group["step"] = 0


def _hybrids(optimizer: MegatronOptimizer) -> list[HybridDeviceOptimizer]:
    inner = (chained.optimizer for chained in getattr(optimizer, "chained_optimizers", [optimizer]))
    return [one for one in inner if isinstance(one, HybridDeviceOptimizer)]


def _inner(optimizer: MegatronOptimizer) -> Iterator[torch.optim.Optimizer]:
    for chained in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = getattr(chained, "optimizer", None)
        if isinstance(inner, HybridDeviceOptimizer):
            yield from inner.sub_optimizers
        elif inner is not None:
            yield inner


_set = distrib_optimizer.DistributedOptimizer._set_main_param_and_optimizer_states


def _set_what_is_stored(self: Any, model_param: Tensor, tensors: dict[str, Tensor]) -> None:
    """Megatron copies into every tensor of the inner state one of the checkpoint, also into `step`, which is stored
    elsewhere (it skips what is no tensor), and into the master weights that the optimizer on the host keeps there."""
    _set(self, model_param, {"step": None, "master_param": tensors["param"], **tensors})


distrib_optimizer.DistributedOptimizer._set_main_param_and_optimizer_states = _set_what_is_stored


SHIFTED = distrib_optimizer.DistributedOptimizer.sharded_param_state_fully_reshardable  # as Megatron has it


def _where_it_is(self: Any, *arguments: Any, **options: Any) -> Any:
    """Megatron joins the buckets of a gradient buffer without what pads each of them, and then cuts the state of a
    parameter out of that where it is with it: from the second bucket on, what is saved as a parameter's would be its
    neighbours'. The embedding that a model ties has a bucket of its own on the stages of a pipeline, and
    --overlap-grad-reduce makes several."""
    with_padding = [buffer.param_index_map for buffer in self.buffers]
    for buffer in self.buffers:
        buffer.param_index_map = _places_without_padding(buffer)
    try:
        return SHIFTED(self, *arguments, **options)
    finally:
        for buffer, places in zip(self.buffers, with_padding, strict=True):
            buffer.param_index_map = places


def _places_without_padding(buffer: Any) -> dict[Tensor, tuple[int, int, int]]:
    """Of each parameter: its first element in the joined buckets, the one after its last, its bucket."""
    padding, joined = [], 0  # before each bucket
    for bucket in buffer.buckets:
        padding.append(bucket.offset - joined)
        joined += bucket.numel_unpadded
    return {
        parameter: (first - padding[bucket], end - padding[bucket], bucket)
        for parameter, (first, end, bucket) in buffer.param_index_map.items()
    }


distrib_optimizer.DistributedOptimizer.sharded_param_state_fully_reshardable = _where_it_is


def _as_they_are(current_groups: list[dict[str, Any]], state_dict_groups: list[dict[str, Any]]) -> Any:
    """`load` has put them in order. Megatron would look them up by their options, and takes two of the same for one."""
    return state_dict_groups


MegatronOptimizer._filter_and_reorder_param_groups = staticmethod(_as_they_are)
