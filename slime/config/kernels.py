"""What only kernels of packages for GPUs, or NCCL, can do.

Asked of --device cpu, and of what this machine shows, before anything starts; and by each training rank of its device.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from slime.config.config import Config
from slime.config.critic import learners
from slime.config.errors import Problem

TRANSFORMER_ENGINE = "transformer_engine"


def layers(config: Config, *, on_gpu: bool) -> str:
    """Whose layers the model is made of: the value of --transformer-impl."""
    return config.transformer_impl or (TRANSFORMER_ENGINE if on_gpu else "local")


def lacking(config: Config, *, on_gpu: bool) -> Iterator[Problem]:
    """What training by these options needs and ranks on such devices, in this environment, do not have."""
    engine, made_of = _lack(TRANSFORMER_ENGINE, on_gpu), layers(config, on_gpu=on_gpu)
    if made_of == TRANSFORMER_ENGINE and engine:
        yield Problem("--transformer-impl", f"{TRANSFORMER_ENGINE}: {engine}", "give --transformer-impl local")
    if config.megatron.get("fp8") and made_of != TRANSFORMER_ENGINE:
        fix = "leave it out, or give --transformer-impl transformer_engine where that package is installed"
        yield Problem("--fp8-format", "only the layers of Transformer Engine compute in fp8", fix)
    attention = config.megatron.get("attention_backend", "auto")
    if made_of != TRANSFORMER_ENGINE and attention not in ("auto", "local"):
        what = f"{attention} is attention of Transformer Engine's, and the local layers have their own"
        yield Problem("--attention-backend", what, "leave it out")
    if made_of == TRANSFORMER_ENGINE and attention == "local":
        fix = "leave it out, or give --transformer-impl local"
        yield Problem("--attention-backend", "local leaves the layers of Transformer Engine without attention", fix)
    if config.megatron.get("gradient_accumulation_fusion"):
        lack = "its kernel computes on GPUs alone" if not on_gpu else ""
        if on_gpu and made_of != TRANSFORMER_ENGINE and not importlib.util.find_spec("fused_weight_gradient_mlp_cuda"):
            lack = "for the local layers it takes a kernel of apex, which is not installed"
        if lack:
            yield Problem("--gradient-accumulation-fusion", lack, "leave it out")
    if config.megatron.get("use_precision_aware_optimizer") and engine:
        yield Problem("--use-precision-aware-optimizer", f"its Adam is Transformer Engine's: {engine}", "leave it out")
    by_kernels = config.megatron.get("moe_token_dispatcher_type") == "flex"
    if by_kernels and config.megatron.get("moe_flex_dispatcher_backend", "deepep") == "deepep":
        if lack := _lack("deep_ep", on_gpu):
            yield Problem("--moe-token-dispatcher-type", f"flex: {lack}", "give --moe-token-dispatcher-type alltoall")
    talks_by = config.distributed_backend if on_gpu else "gloo"
    if config.nccl_communicator_config_path and talks_by != "nccl":
        what = f"the ranks talk by {talks_by}, not by NCCL"
        yield Problem("--nccl-communicator-config-path", what, "leave it out")


def lacking_to_run(config: Config, *, on_gpu: bool) -> Iterator[Problem]:
    """The same of all that trains: options may hold for the policy or its critic alone."""
    yield from dict.fromkeys(problem for learner in learners(config) for problem in lacking(learner, on_gpu=on_gpu))


def _lack(module: str, on_gpu: bool) -> str | None:
    package = module.replace("_", "-")
    if not on_gpu:
        return f"{package} computes on GPUs alone"
    return None if importlib.util.find_spec(module) else f"the package {package} is not installed"
