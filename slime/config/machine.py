"""Whether this machine has the devices and the packages that a run asks for. Of the devices of a cluster that the run
joins (RAY_ADDRESS) nothing is known here: the placement asks it.

Invariant: no device is touched; GPUs are counted by their device files. What is counted is at least what Ray will find,
so that nothing is refused here that could have been placed.
"""

from __future__ import annotations

import glob
import importlib.util
import itertools
import os
import re
import socket
from collections.abc import Iterator

from slime.config import engine_rules, group_rules, kernels, plan
from slime.config.config import Config
from slime.config.engine_groups import served_models
from slime.config.errors import Problem

READS = {
    "device", "cpu_slots", "actor_num_nodes", "actor_num_gpus_per_node", "rollout_num_gpus", "colocate", "loss_type",
    "debug_rollout_only", "critic_num_nodes", "critic_num_gpus_per_node",
}  # fmt: skip


TRACKERS = {"use_tensorboard": "tensorboard", "use_wandb": "wandb"}


def lacking(config: Config, unsound: set[str]) -> Iterator[Problem]:
    """What a run on this machine alone would need more than there is."""
    yield from _packages(config)
    yield from _recorder(config)
    yield from _port(config, unsound)
    yield from _devices(config, unsound)
    yield from _kernels(config, unsound)


def _packages(config: Config) -> Iterator[Problem]:
    for option, package in TRACKERS.items():
        if getattr(config, option) and importlib.util.find_spec(package) is None:
            fix = "pip install 'slime[trackers]' in this environment"
            yield Problem("--" + option.replace("_", "-"), f"the package {package} is not installed", fix)


def _recorder(config: Config) -> Iterator[Problem]:
    if not config.record_memory_history:
        return
    option = "--memory-recorder"
    if config.memory_recorder == "memray" and importlib.util.find_spec("memray") is None:
        yield Problem(option, "the package memray is not installed", "pip install memray, in this environment")
    elif config.memory_recorder == "torch" and (config.device == "cpu" or not (num_gpus() or _joins_a_cluster())):
        yield Problem(option, "torch records the memory of GPUs, and there is none", f"{option} memray")


def _port(config: Config, unsound: set[str]) -> Iterator[Problem]:
    """The router's, when one is to be started here with a port of the user's choice."""
    if _joins_a_cluster() or config.sglang_router_ip or "sglang_router_port" in unsound or not config.has_engines:
        return
    if config.sglang_router_port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the router does
            try:
                probe.bind(("127.0.0.1", config.sglang_router_port))
            except OSError as error:
                what = f"cannot listen on port {config.sglang_router_port} ({error.strerror})"
                yield Problem("--sglang-router-port", what, "choose another, or none to have a free one found")


def _joins_a_cluster() -> bool:
    return os.environ.get("RAY_ADDRESS", "local") not in ("", "local")


def _devices(config: Config, unsound: set[str]) -> Iterator[Problem]:
    if _joins_a_cluster() or READS & unsound or group_rules.look(config, unsound):
        return
    gpus = num_gpus()
    if config.device == "cuda" and not gpus:
        fix = "give --device cpu, or start the run where the GPUs are (RAY_ADDRESS joins a cluster)"
        yield Problem("--device", "cuda, but this machine shows no GPU", fix)
        return
    on_gpus = gpus > 0 and config.device != "cpu"
    if not on_gpus and any(model.is_disaggregated for model in served_models(config)):
        what = "prefill and decode engines need GPUs: their caches travel by RDMA or NVLink"
        yield Problem("--sglang-config or --prefill-num-servers", what, "start the run where the GPUs are")
    have = gpus if on_gpus else config.cpu_slots or os.cpu_count() or 1
    kind = f"GPU{'s' * (have != 1)}" if on_gpus else f"CPU slot{'s' * (have != 1)}"
    if (need := plan.devices(config)) > have:
        fix = "ask for fewer with --actor-num-gpus-per-node or --rollout-num-gpus, "
        fix += "" if on_gpus else "allow more processes than cores with --cpu-slots, "
        what = f"{need} devices are asked for in all, this machine has {have} {kind}"
        yield Problem("--actor-num-gpus-per-node", what, f"{fix}or join a cluster that has them (RAY_ADDRESS)")


def _kernels(config: Config, unsound: set[str]) -> Iterator[Problem]:
    """What of --device cpu is in rules.py, and of --device cuda without a GPU is in _devices."""
    gpus = num_gpus() > 0
    is_said = config.device == "cpu" or (config.device == "cuda" and not gpus)
    if not (is_said or _joins_a_cluster() or {"device", "megatron_config_path"} & unsound):
        yield from kernels.lacking_to_run(config, on_gpu=gpus)
        if not (gpus or group_rules.look(config, unsound)):
            yield from engine_rules.only_on_gpus(config, served_models(config))


def num_gpus() -> int:
    """NVIDIA devices that CUDA_VISIBLE_DEVICES leaves: those up to the first that is none, such as -1."""
    there = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    names = (name.strip() for name in visible.split(","))
    return min(there, len(list(itertools.takewhile(re.compile(r"\d+|(GPU|MIG)-.*").fullmatch, names))))
