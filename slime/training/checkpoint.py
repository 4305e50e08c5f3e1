"""Checkpoints: what a run needs to go on exactly, in Megatron's torch_dist format.

Invariants
- A checkpoint is written beside its place and renamed when all of it is on the disk; the marker of the latest one
  changes after that. So whenever a save is killed, the last good one is the latest, and half of one is never loaded.
- Weights and optimizer state are stored as the model's tensors, whatever ranks held them (fully_reshardable): another
  TP, PP or DP reads its own parts. What is no tensor is state.json, readable without torch.
- All methods are collective. With `in_background` files are written by a thread, from copies; only `settle`, which
  every rank calls at the same points, makes them a checkpoint.
- One that can't be written, since the disk is full say, is a CheckpointError, and what there was of it is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedBase, ShardedTensor
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.api import CheckpointException

from slime.config import Config, checkpoint_dir
from slime.models.checkpoint import CheckpointError
from slime.models.save import to_disk
from slime.training import optimizer_state
from slime.training.build import Model
from slime.training.random_state import random_states, set_random_states
from slime.training.saved import STATE, Progress, Saved, head_of, layout_of, metadata, named, reasons, sharded_weights

REFERENCE = "ref."  # before names of the reference's tensors
FULL_BYTES = 2**22  # a disk that has less room is taken for full


@dataclass
class _Save:
    """One that is being written."""

    rollout_id: int
    final: Path
    partial: Path
    state: dict[str, Any]
    request: Any
    thread: threading.Thread | None = None


class Checkpoints:
    """Of one rank."""

    def __init__(self, config: Config, model: Model) -> None:
        self.config, self.model = config, model
        self.has_reference = config.ref_update_interval is not None and "ref" in model.frozen
        self.pending: _Save | None = None

    # Saving.

    def save(self, progress: Progress, *, in_background: bool = False) -> None:
        """Writes DIR/iter_N, N being progress.rollout_id, and removes what --save-keep doesn't keep."""
        self.settle(wait=True)
        directory = Path(self.config.save)
        final = directory / checkpoint_dir.name_of(progress.rollout_id)
        partial = directory / f".{final.name}.partial"
        with _explained(partial):
            save = self._begin(progress, final, partial, in_background=in_background)
            if in_background:
                save.thread = _started(save.request)
                self.pending = save
            else:
                save.request.execute_sync()
                self._commit(save)

    def _begin(self, progress: Progress, final: Path, partial: Path, *, in_background: bool) -> _Save:
        directory = final.parent
        if dist.get_rank() == 0:
            for left in [*directory.glob(".iter_*.partial"), *directory.glob(".iter_*.replaced")]:
                shutil.rmtree(left)  # of saves that were killed
            partial.mkdir(parents=True)
        dist.barrier()
        tensors = self._tensors(
            with_optimizer=not self.config.no_save_optim,
            with_random=True,
            with_reference=self.has_reference,
            is_loading=False,
        )
        if in_background and not self.model.parallel.device.is_cuda:
            _copy(tensors)  # on a GPU, bringing them to the host copies them
        request = dist_checkpointing.save(
            tensors,
            str(partial),
            FullyParallelSaveStrategyWrapper(
                TorchDistSaveShardedStrategy(), mpu.get_data_parallel_group(with_context_parallel=True)
            ),
            async_sharded_save=True,
            async_strategy="mcore",
        )
        return _Save(progress.rollout_id, final, partial, self._state(progress), request)

    def settle(self, *, wait: bool = False) -> None:
        """Makes a save in the background a checkpoint, when every rank has written its part; `wait`: for that."""
        if self.pending is None:
            return
        writing = self.pending.thread.is_alive()
        if not wait:
            device = self.model.parallel.device.torch
            still = torch.tensor(int(writing), device=device)
            dist.all_reduce(still, dist.ReduceOp.MAX)
            if still.item():
                return
        save, self.pending = self.pending, None
        save.thread.join()
        dist.barrier()
        with _explained(save.partial):
            for finalize in save.request.finalize_fns:
                finalize()
            self._commit(save)

    def _commit(self, save: _Save) -> None:
        """Rank 0 gives the directory its name; all return when it has it."""
        if dist.get_rank() == 0:
            replaced = save.final.with_name(f".{save.final.name}.replaced")
            shutil.copyfile(Path(self.config.hf_checkpoint) / "config.json", save.partial / "config.json")
            _write(save.partial / STATE, json.dumps(save.state, indent=1))
            to_disk(save.partial)
            if save.final.exists():
                save.final.rename(replaced)
            save.partial.rename(save.final)
            directory = save.final.parent
            to_disk(directory)
            _write(directory / checkpoint_dir.MARKER, str(save.rollout_id))
            to_disk(directory)
            shutil.rmtree(replaced, ignore_errors=True)
            self._remove_old(directory, save.rollout_id)
        dist.barrier()

    def _remove_old(self, directory: Path, rollout_id: int) -> None:
        """Later ones than this, of a run that this one went back from, are left alone."""
        if self.config.save_keep is None:
            return
        older = [number for number in checkpoint_dir.rollouts(directory) if number <= rollout_id]
        for number in older[: -self.config.save_keep]:
            # Out of sight first: half of what is being removed must not look like a checkpoint.
            gone = directory / f".{checkpoint_dir.name_of(number)}.replaced"
            (directory / checkpoint_dir.name_of(number)).rename(gone)
            shutil.rmtree(gone)
            for file in (directory / checkpoint_dir.DATA).glob(f"{number}.*json"):
                file.unlink()

    def resume(self, saved: Saved) -> Progress:
        """Takes over what its run would have gone on with; its weights the model was built with already."""
        weights_only = self.config.finetune or saved.progress is None
        with_optimizer = saved.takes_optimizer(self.config)
        same_ranks = saved.layout == layout_of(self.model.config)
        with_random = same_ranks and not (weights_only or self.config.no_load_rng)
        with_reference = self.has_reference and saved.has_reference and not weights_only
        tensors = self._tensors(
            with_optimizer=with_optimizer, with_random=with_random, with_reference=with_reference, is_loading=True
        )
        loaded = saved.load(tensors) if tensors else {}
        if with_optimizer:
            for name in optimizer_state.unlike_weights(self.model.optimizer, loaded["optimizer"]):
                raise CheckpointError(
                    f"{saved.path} holds master weights of {name} that are not of its weights, as Megatron writes them"
                    " where gradients lie in several buckets: add --no-load-optim"
                )
            optimizer_state.load(self.model.optimizer, loaded["optimizer"])
            self.model.schedule.step(saved.progress.num_steps)
        if with_reference:
            with self.model.frozen["ref"].in_place(self.model.chunks):
                for name, chunk in named(self.model.chunks):
                    of_chunk = loaded[REFERENCE + name].items()
                    chunk.load_state_dict({key.removeprefix(REFERENCE): tensor for key, tensor in of_chunk})
        if with_random:
            set_random_states({name: tensor[0] for name, tensor in loaded["random"].items()})
        return Progress() if weights_only else saved.progress

    # Contents.

    def _state(self, progress: Progress) -> dict[str, Any]:
        return {
            "progress": asdict(progress),
            "has_optimizer": not self.config.no_save_optim,
            "has_reference": self.has_reference,
            "layers": self.model.config.transformer_impl,
            "head": head_of(self.model.shard.family),
            "layout": layout_of(self.model.config),
            "mtp_layers": self.model.config.mtp_num_layers or 0,
            "distributed_optimizer": self.config.use_distributed_optimizer,
        }

    def _tensors(
        self, *, with_optimizer: bool, with_random: bool, with_reference: bool, is_loading: bool
    ) -> dict[str, Any]:
        """Megatron's sharded state: this rank's parts of the global tensors; for loading, all but the weights."""
        weights = sharded_weights(self.model.chunks)
        tensors: dict[str, Any] = {} if is_loading else dict(weights)
        if with_optimizer:
            optimizer_state.prime(self.model.optimizer)
            of_model = weights["model"] if len(weights) == 1 else weights
            tensors["optimizer"] = self.model.optimizer.sharded_state_dict(
                of_model, is_loading=is_loading, metadata=metadata()
            )
        if with_reference:
            with self.model.frozen["ref"].in_place(self.model.chunks):
                reference = sharded_weights(self.model.chunks, REFERENCE)
                for part in nested_values(reference):
                    if isinstance(part, ShardedBase) and isinstance(part.data, torch.Tensor):
                        part.data = part.data.detach()  # the parameter itself is the policy's again afterwards
            tensors |= reference
        if with_random:
            place = (0, dist.get_rank(), dist.get_world_size())
            tensors["random"] = {
                name: ShardedTensor.from_rank_offsets(f"random.{name}", state[None], place)
                for name, state in random_states().items()
            }
        return tensors


@contextmanager
def _explained(partial: Path) -> Iterator[None]:
    """Of a checkpoint that is being written to `partial`."""
    try:
        yield
    except (OSError, CheckpointException) as error:
        directory = partial.absolute().parent
        free = shutil.disk_usage(next(path for path in (directory, *directory.parents) if path.is_dir())).free
        reason = reasons(error) if isinstance(error, CheckpointException) else str(error)
        if not directory.is_dir():
            reason = f"there is no such directory on {socket.gethostname()}; all nodes must share that of --save"
        elif free < FULL_BYTES:  # Megatron's words don't say so
            reason = "the disk is full"
        shutil.rmtree(partial, ignore_errors=True)  # it may be what has filled the disk
        raise CheckpointError(
            f"can't write a checkpoint to {partial.parent}: {reason} ({free / 1e6:,.0f} MB free). The checkpoint before"
            " is as it was: mend this, and go on from there with --load"
        ) from error


def _started(request: Any) -> threading.Thread:
    """A thread that writes this rank's files, from tensors that are on the host by now."""
    arguments = list(request.async_fn_args)
    if request.preload_fn is not None:
        arguments[1] = request.preload_fn()
    write = request.async_fn or (lambda *_: None)
    thread = threading.Thread(target=write, args=arguments, kwargs=request.async_fn_kwargs, name="checkpoint")
    thread.start()
    return thread


def _copy(tensors: dict[str, Any]) -> None:
    """In place, so that training may go on."""
    for part in nested_values(tensors):
        if isinstance(part, ShardedBase) and isinstance(part.data, torch.Tensor):
            part.data = part.data.detach().clone()


def _write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
