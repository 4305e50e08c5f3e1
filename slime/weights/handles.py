"""Weights by handle, for engines on the trainers' own devices: shared memory on a CPU, CUDA IPC on GPUs.

Only handles travel; an engine's rank maps the very memory that a trainer wrote, and copies out of it. On GPUs the
memory must be on the engine rank's own device, so rank d of the trainers provides for device d of the engines; on a CPU
any rank of the machine can provide, and there may be fewer of them than engine ranks.
"""

from __future__ import annotations

import base64
import io
from functools import partial
from multiprocessing.reduction import ForkingPickler

import torch
import torch.distributed as dist
import torch.multiprocessing

from slime.inference.control import EngineControl
from slime.training.trainer import Trainer
from slime.weights.sync import Bucket, WeightSync

ALIGNMENT = 64  # bytes; any element type may start there


class HandleSync(WeightSync):
    def __init__(self, trainer: Trainer, engines: list[EngineControl], *, buffer_bytes: int) -> None:
        super().__init__(trainer, engines, buffer_bytes=buffer_bytes)
        # PyTorch's default on Linux passes file descriptors, which a request over HTTP cannot carry.
        torch.multiprocessing.set_sharing_strategy("file_system")
        if trainer.parallel.device.is_cuda:
            # Trainer and engine number the GPUs that they see differently; SGLang's handles name a GPU by its UUID.
            from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

            monkey_patch_torch_reductions()
        self.memory = torch.empty(0, dtype=torch.uint8)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.served: list[tuple[EngineControl, list[int], dist.ProcessGroup | None]] = []
        for engine in engines:
            devices = range(engine.first_device, engine.first_device + engine.num_devices)
            providers = [device % world_size for device in devices]
            # Every rank must take part in making every group, in the same order.
            group = dist.new_group(sorted(set(providers)), backend="gloo") if len(set(providers)) > 1 else None
            if rank in providers:
                self.served.append((engine, providers, group))

    def _send(self, version: str) -> int:
        sent_bytes = 0
        for bucket in self.trainer.weights(self.buffer_bytes, across_pp=True):
            if self.served:
                payload = self._share(bucket)
            for engine, providers, group in self.served:
                self._load(engine, providers, group, payload, version)
                sent_bytes += len(payload)
            # The memory is written again by the next bucket; by now every engine of this rank has copied it.
            dist.barrier()
        return sent_bytes

    def _share(self, bucket: Bucket) -> str:
        """Copies the bucket into this rank's shared memory; returns the pickled handles, base64."""
        offsets, size = [], 0
        for _, tensor in bucket:
            offsets.append(size)
            size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        if self.memory.numel() < size:
            self.memory = torch.empty(size, dtype=torch.uint8, device=bucket[0][1].device)
            if self.memory.device.type == "cpu":
                self.memory.share_memory_()
        shared = []
        for (name, tensor), offset in zip(bucket, offsets, strict=True):
            slot = self.memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            slot.copy_(tensor)
            shared.append((name, slot))
        if self.memory.is_cuda:
            torch.cuda.synchronize()
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(shared)
        return base64.b64encode(buffer.getvalue()).decode()

    def _load(
        self, engine: EngineControl, providers: list[int], group: dist.ProcessGroup | None, payload: str, version: str
    ) -> None:
        """Gathers the handles of all ranks of one engine on the first provider, which hands them over and waits."""
        payload_of_rank = {dist.get_rank(): payload}
        if group is not None:
            members = sorted(set(providers))
            gathered: list[str] = [""] * len(members)
            dist.all_gather_object(gathered, payload, group=group)
            payload_of_rank = dict(zip(members, gathered, strict=True))
        if dist.get_rank() == providers[0]:
            update = partial(
                engine.update_weights_from_tensor,
                serialized_named_tensors=[payload_of_rank[rank] for rank in providers],
                flush_cache=False,
                weight_version=version,
            )
            self._attempt(update)
        if group is not None:
            dist.barrier(group)

    def close(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        for _, _, group in self.served:
            if group is not None:
                dist.destroy_process_group(group)
        self.served = []
