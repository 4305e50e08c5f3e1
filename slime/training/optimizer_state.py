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
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    states = [stored] if len(chained) == 1 else [stored[index] for index in range(len(chained))]
    for one, state in zip(chained, states, strict=True):
        inner = state.get("optimizer", state)
        counts = [{"step": group["step"]} for group in inner["param_groups"] if "step" in group]
        own = one.optimizer.state_dict()["param_groups"]
        inner["param_groups"] = [group | counts[0] if counts else group for group in own]
    optimizer.load_state_dict(stored)
    _separate_steps(optimizer)


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


def _as_they_are(current_groups: list[dict[str, Any]], state_dict_groups: list[dict[str, Any]]) -> Any:
    """`load` has put them in order. Megatron would look them up by their options, and takes two of the same for one."""
    return state_dict_groups


MegatronOptimizer._filter_and_reorder_param_groups = staticmethod(_as_they_are)
