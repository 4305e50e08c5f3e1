"""Process groups of the training ranks, and where this rank stands in them.

Ranks = TP x CP x DP x PP, in Megatron's order: tensor-parallel ranks are neighbours, pipeline stages farthest apart.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from math import prod

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from slime.config import Config, ConfigError, kernels
from slime.platform import stores
from slime.platform.device import Device, claim


@dataclass(frozen=True)
class Parallel:
    """One rank's place. Made by `start`, ended by `stop`."""

    device: Device
    rank: int
    world_size: int
    owns_processes: bool  # whether the default process group was made here, and so ends here

    @cached_property
    def tp_rank(self) -> int:
        return mpu.get_tensor_model_parallel_rank()

    @cached_property
    def tp_size(self) -> int:
        return mpu.get_tensor_model_parallel_world_size()

    @cached_property
    def cp_rank(self) -> int:
        return mpu.get_context_parallel_rank()

    @cached_property
    def cp_size(self) -> int:
        return mpu.get_context_parallel_world_size()

    @cached_property
    def dp_rank(self) -> int:
        return mpu.get_data_parallel_rank()

    @cached_property
    def dp_size(self) -> int:
        return mpu.get_data_parallel_world_size()

    @cached_property
    def cp_group(self) -> dist.ProcessGroup | None:
        """The ranks that share this one's samples; None where it has them alone."""
        return mpu.get_context_parallel_group() if self.cp_size > 1 else None

    @cached_property
    def is_last_stage(self) -> bool:
        """Whether log-probs are made here."""
        return mpu.is_pipeline_last_stage(ignore_virtual=True)

    @cached_property
    def counts_tokens(self) -> bool:
        """Whether its sums over tokens enter a sum over all ranks: one rank of each TP group of the last stage does."""
        return self.tp_rank == 0 and self.is_last_stage

    @cached_property
    def counts_samples(self) -> bool:
        """The same for sums over samples, which context-parallel ranks share."""
        return self.counts_tokens and self.cp_rank == 0

    def sum_over_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """In place, over the ranks that hold other tokens of this rank's stage."""
        dist.all_reduce(tensor, group=mpu.get_data_parallel_group(with_context_parallel=True))
        return tensor

    def gather(self, vector: torch.Tensor) -> torch.Tensor:
        """[n] of each rank -> [world_size, n] on every rank."""
        everyone = vector.new_empty(self.world_size * len(vector))
        dist.all_gather_into_tensor(everyone, vector)
        return everyone.view(self.world_size, -1)

    def agree(self, names: Iterable[str]) -> list[str]:
        """The names that any rank has, sorted. Collective."""
        everyone: list[list[str]] = [[]] * self.world_size
        dist.all_gather_object(everyone, sorted(names))
        return sorted({name for of_rank in everyone for name in of_rank})

    def stop(self) -> None:
        made = [group for group in mpu._global_process_group_list or [] if group is not None]
        mpu.destroy_model_parallel()  # which only forgets them
        if self.owns_processes:
            dist.destroy_process_group()
            return
        for group in made:
            dist.destroy_process_group(group)


def start(config: Config, rank: int, world_size: int, master_addr: str, master_port: int) -> Parallel:
    """Joins the training ranks and makes Megatron's groups. A default process group that is there already is used.

    Raises:
        ValueError: the parallel sizes do not fit the number of ranks.
        ConfigError: options that need what this machine does not have.
    """
    sizes = {
        "tensor_model_parallel_size": config.tensor_model_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_model_parallel_size,
        "context_parallel_size": config.context_parallel_size,
    }
    model_ranks = prod(sizes.values())
    if world_size % model_ranks:
        raise ValueError(
            f"{world_size} training ranks can't be divided into models of {model_ranks} ranks: "
            + " x ".join(f"--{name.replace('_', '-')} {size}" for name, size in sizes.items() if size > 1)
        )
    device = claim(
        config.device, local_rank=int(os.environ.get("LOCAL_RANK", rank)), backend=config.distributed_backend
    )
    if lacking := list(kernels.lacking(config, on_gpu=device.is_cuda)):
        raise ConfigError(lacking)
    timeout = timedelta(minutes=config.distributed_timeout_minutes)
    owns_processes = not dist.is_initialized()
    if owns_processes:
        _join(device, rank, world_size, master_addr, master_port, timeout)
    mpu.initialize_model_parallel(
        **sizes,
        virtual_pipeline_model_parallel_size=config.megatron.get("virtual_pipeline_model_parallel_size"),
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        nccl_communicator_config_path=config.nccl_communicator_config_path,
        distributed_timeout_minutes=config.distributed_timeout_minutes,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(config.seed)
    return Parallel(device, rank, world_size, owns_processes)


def _join(device: Device, rank: int, world_size: int, address: str, port: int, timeout: timedelta) -> None:
    if _is_loopback(address):
        # Left alone, gloo would listen where the host's name leads to.
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    if rank == 0 and not stores.is_torchruns():
        store = stores.listening(address, port, world_size, timeout)
    else:
        store = dist.TCPStore(address, port, world_size, is_master=False, timeout=timeout)
    dist.init_process_group(
        device.backend,
        store=dist.PrefixStore("slime-training", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device.torch if device.is_cuda else None,
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
