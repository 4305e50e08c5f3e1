"""Weights by broadcast, for engines on devices of their own: gloo on a CPU, NCCL on GPUs.

Each pipeline stage has one source, the first rank that holds the stage, and one process group that joins that source
(rank 0) with every tensor-parallel rank of every engine. Stages send one after the other, so that an engine loads one
bucket at a time.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import accumulate

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch.distributed import distributed_c10d as c10d

from slime.inference.control import EngineControl, call_all
from slime.inference.errors import InferenceError
from slime.platform import stores
from slime.training.trainer import Trainer
from slime.weights.sync import Bucket, WeightSync, num_bytes, together

ANSWER_S = 60.0


class BroadcastSync(WeightSync):
    """`address` is this machine's, as the engines reach it."""

    def __init__(
        self,
        trainer: Trainer,
        engines: list[EngineControl],
        *,
        buffer_bytes: int,
        address: str,
        backend: str,
        timeout: timedelta,
    ) -> None:
        super().__init__(trainer, engines, buffer_bytes=buffer_bytes)
        self.stage, self.num_stages = (
            mpu.get_pipeline_model_parallel_rank(),
            mpu.get_pipeline_model_parallel_world_size(),
        )
        self.is_source = (
            mpu.get_data_parallel_rank(with_context_parallel=True) == 0 and mpu.get_tensor_model_parallel_rank() == 0
        )
        self.group_name = f"slime-weights-{self.stage}-{secrets.token_hex(4)}"
        # One thread waits for the engines' answers while this one broadcasts.
        self.waiter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self.group: dist.ProcessGroup | None = None
        together(partial(self._join, address, backend, timeout), takes_part=self.is_source)

    def _join(self, address: str, backend: str, timeout: timedelta) -> None:
        """A group beside the default one: neither side may touch the other's world, so it cannot come from
        `new_group`."""
        # Who joins waits for the others, for minutes: better not for one that is dead. SGLang's own /health would have
        # no answer of an engine that is paused.
        call_all(self.engines, "answer", timeout=ANSWER_S)
        first_ranks = list(accumulate((engine.num_devices for engine in self.engines), initial=1))
        world_size = first_ranks.pop()
        store = stores.listening(address, 0, world_size, timeout, wait_for_workers=False)
        joined = self.waiter.submit(
            call_all,
            self.engines,
            "init_weights_update_group",
            each=[{"rank_offset": first} for first in first_ranks],
            master_address=address,
            master_port=store.port,
            world_size=world_size,
            group_name=self.group_name,
            backend=backend,
        )
        # The same construction as on the engine's side, so that both find each other under the same keys of the store.
        try:
            group, _ = c10d._new_process_group_helper(
                world_size,
                0,
                [],
                c10d.Backend(backend),
                c10d.PrefixStore(self.group_name, store),
                group_name=self.group_name,
                timeout=timeout,
            )
        except RuntimeError as error:
            if joined.done():
                joined.result()  # an engine that refused says why; that we waited for it in vain is the consequence
            raise InferenceError(f"{self._names()} did not join the trainers for weight updates: {error}") from error
        c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
        joined.result()
        self.group = group

    def _send(self, version: str) -> int:
        sent_bytes = 0
        for bucket in self.trainer.weights(
            self.buffer_bytes
        ):  # collective over all stages; some may have run out of tensors
            for stage in range(self.num_stages):
                if stage == self.stage and self.is_source and bucket:
                    self._attempt(partial(self._send_bucket, bucket, version))
                    sent_bytes += num_bytes(bucket)
                if self.num_stages > 1:
                    dist.barrier()
        return sent_bytes

    def _send_bucket(self, bucket: Bucket, version: str) -> None:
        # Wide types first: the receiver views slices of one byte buffer, each at a multiple of its item size.
        bucket = sorted(bucket, key=lambda named: -named[1].element_size())
        loaded = self.waiter.submit(
            call_all,
            self.engines,
            "update_weights_from_distributed",
            names=[name for name, _ in bucket],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            shapes=[list(tensor.shape) for _, tensor in bucket],
            group_name=self.group_name,
            load_format="flattened_bucket",
            flush_cache=False,
            weight_version=version,
        )
        flat = torch.cat([tensor.detach().contiguous().view(-1).view(torch.uint8) for _, tensor in bucket])
        try:
            dist.broadcast(flat, src=0, group=self.group)
        except RuntimeError as error:
            raise InferenceError(f"a broadcast of weights to {self._names()} failed: {error}") from error
        loaded.result()

    def _names(self) -> str:
        return ", ".join(engine.name for engine in self.engines)

    def close(self) -> None:
        """Ends the group on both sides; an engine that has ended already needs no telling."""
        self.waiter.shutdown(wait=False, cancel_futures=True)
        if self.is_source:
            with suppress(InferenceError):
                call_all(self.engines, "destroy_weights_update_group", group_name=self.group_name)
            dist.destroy_process_group(self.group)
