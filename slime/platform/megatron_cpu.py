"""Megatron-core on CPU and gloo: it names CUDA in many places, this module points each of them at the CPU.

Invariants
- `enable()` runs before the first import of megatron, in training processes only: it patches torch for the whole
  process.
- Nothing in site-packages is edited, and `torch.cuda.is_available()` is False afterwards, also where there is a GPU
  that `--device cpu` does not want.
- Each patch stands for one reason, given at its place together with where Megatron needs it (paths below
  megatron/core/, as of 0.19). What Megatron does not need on a CPU is not patched, so that a new need fails loudly.

On a CPU `.cuda()`, `.cpu()` and `.pin_memory()` all return the same tensor: a snapshot has to `.clone()`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

_enabled = False


def enable() -> None:
    """Patches torch so that Megatron-core runs on the CPU. Idempotent.

    Raises:
        RuntimeError: megatron is imported already, so that some of its modules hold unpatched functions of torch.
    """
    global _enabled
    if _enabled:
        return
    if "megatron.core" in sys.modules:
        raise RuntimeError("slime.platform.megatron_cpu.enable() has to run before megatron is imported")
    _enabled = True
    _stand_in_for_triton_kernels()
    _no_compiler()
    _device_queries()
    _streams()
    _random_states()
    _device_literals()
    _tensor_type_names()
    _split_sizes()
    _uneven_parts()


def _constant(value: Any) -> Callable[..., Any]:
    """A new function each call: torch._dynamo keeps a table of torch's functions by id and refuses duplicates."""
    return lambda *args, **kwargs: value


def _stand_in_for_triton_kernels() -> None:
    """pipeline_parallel/schedules.py imports transformer/moe/ops/paged_stash.py, the one module that imports triton
    unguarded. Only that module gets a stand-in; a fake `triton` would mislead torch and transformers, which probe for
    it.
    """
    if importlib.util.find_spec("triton") is not None:
        return
    name = "megatron.core.transformer.moe.ops.paged_stash"
    module = types.ModuleType(name, "Stand-in: these kernels need triton.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)

    def kernel(attribute: str) -> Callable[..., Any]:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def missing(*args: Any, **kwargs: Any) -> None:
            raise NotImplementedError(
                f"Megatron's {attribute} (--moe-paged-stash) needs triton, which is not installed"
            )

        return missing

    module.__getattr__ = kernel
    sys.modules[name] = module


def _no_compiler() -> None:
    """jit.py sends every small fused function (bias-gelu, swiglu, cross entropy, router) through torch.compile, which
    would call a C++ compiler at the first step of each process: seconds, and a compiler need not be there."""
    torch.compile = lambda model=None, **options: model if model is not None else (lambda function: function)


def _device_queries() -> None:
    """`device=torch.cuda.current_device()` is everywhere (parallel_state.py, tensor_parallel/, distributed/, moe/)."""
    cuda = torch.cuda
    cuda.is_available = _constant(False)
    cuda.current_device = _constant(torch.device("cpu"))
    cuda._lazy_init = _constant(None)  # tensor_parallel/random.py imports it by name
    cuda.synchronize = _constant(None)  # pipeline_parallel/p2p_communication.py, after each exchange of shapes


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...


class _Stream:
    """The one stream of a CPU: everything on it has happened already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> _Event:
        return event or _Event()

    def synchronize(self) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0


def _streams() -> None:
    """Side streams of distributed/ (gradient reduction), transformer/moe/ (token dispatcher, shared experts) and
    optimizer/cpu_offloading/."""
    torch.cuda.Stream, torch.cuda.Event = _Stream, _Event
    torch.cuda.current_stream = _constant(_Stream())
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.Tensor.record_stream = _constant(None)


class _Generators:
    """`torch.cuda.default_generators[any device]`."""

    def __getitem__(self, device: Any) -> torch.Generator:
        return torch.default_generator


def _random_states() -> None:
    """tensor_parallel/random.py keeps states of "the CUDA generator": here that is the CPU generator, the only one.

    So the order of data must not come from it, but from a generator of its own.
    """
    cuda = torch.cuda

    def manual_seed(seed: int) -> None:
        torch.default_generator.manual_seed(int(seed))

    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    cuda.manual_seed = manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = get_rng_state
    cuda.default_generators = _Generators()
    cuda._lazy_call = lambda callback, **kwargs: callback()


def _on_cpu(device: Any) -> Any:
    return torch.device("cpu") if device is not None and torch.device(device).type == "cuda" else device


def _device_literals() -> None:
    """`device="cuda"` is written out in pipeline_parallel/schedules.py (token counts), optimizer/ (found_inf, scale,
    norms) and rerun_state_machine.py; `.cuda()` in rope_utils.py and for tied embeddings under pipeline parallelism;
    `pin_memory=True` in rope_utils.py, which YaRN under context parallelism comes to."""

    def redirect(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(factory)
        def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
            if "device" in kwargs:
                kwargs["device"] = _on_cpu(kwargs["device"])
            kwargs.pop("pin_memory", None)
            return factory(*args, **kwargs)

        return on_cpu

    for name in ("tensor", "zeros"):
        setattr(torch, name, redirect(getattr(torch, name)))
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor
    torch.nn.Module.cuda = lambda module, *args, **kwargs: module
    torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor  # optimizer/cpu_offloading/


def _tensor_type_names() -> None:
    """optimizer/optimizer.py, distrib_optimizer.py and clip_grads.py sort parameters by `tensor.type()`, comparing with
    'torch.cuda.FloatTensor' and its siblings."""
    type_of = torch.Tensor.type

    def named_as_on_cuda(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name_or_tensor = type_of(tensor, *args, **kwargs)
        return name_or_tensor.replace("torch.", "torch.cuda.", 1) if isinstance(name_or_tensor, str) else name_or_tensor

    torch.Tensor.type = named_as_on_cuda


def _split_sizes() -> None:
    """The all-to-all dispatcher of experts hands over split sizes as tensors: transformer/moe/moe_utils.py moves them
    to the host only from a CUDA device, and torch.distributed wants lists of integers.
    """
    exchange = torch.distributed.all_to_all_single

    def as_list(sizes: Any) -> Any:
        return sizes.tolist() if torch.is_tensor(sizes) else sizes

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, **kwargs):
        return exchange(output, input, as_list(output_split_sizes), as_list(input_split_sizes), **kwargs)

    torch.distributed.all_to_all_single = all_to_all_single


def _uneven_parts() -> None:
    """Where an expert's matrices are divided among ranks with different tokens, tensor_parallel/mappings.py gathers and
    scatters parts of different lengths, which NCCL takes and gloo does not."""
    gather, scatter = torch.distributed.all_gather, torch.distributed.reduce_scatter

    def are_even(tensors: list[torch.Tensor]) -> bool:
        return len({tensor.shape for tensor in tensors}) == 1

    def all_gather(tensor_list, tensor, group=None, async_op=False):
        if are_even(tensor_list):
            return gather(tensor_list, tensor, group, async_op)
        longest = max(map(len, tensor_list))
        padded = [tensor.new_zeros(longest, *tensor.shape[1:]) for _ in range(len(tensor_list) + 1)]
        padded[-1][: len(tensor)] = tensor
        gather(padded[:-1], padded[-1], group)
        for part, of_rank in zip(tensor_list, padded, strict=False):
            part.copy_(of_rank[: len(part)])

    def reduce_scatter(output, input_list, op=torch.distributed.ReduceOp.SUM, group=None, async_op=False):
        if are_even(input_list):
            return scatter(output, input_list, op, group, async_op)
        total = torch.cat(input_list)
        torch.distributed.all_reduce(total, op, group)
        output.copy_(total.split([len(part) for part in input_list])[torch.distributed.get_rank(group)])

    torch.distributed.all_gather, torch.distributed.reduce_scatter = all_gather, reduce_scatter
