"""Weights from Hugging Face to Megatron's torch_dist and back, on CPU ranks that share the layers among them.

Invariants: a rank reads, holds and writes only its stage; values keep the dtype that config.json names, so that there
and back is the same to the last bit; what is written is written beside its place and renamed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing

from slime.config import checkpoint_dir, load
from slime.models import Family, Shard, family_of, load_hf, multi_token_model, read_hf_config, save_hf, value_model
from slime.models.checkpoint import Checkpoint
from slime.training.build import bare_models, transformer_config
from slime.training.parallel import start
from slime.training.saved import STATE, Saved, sharded_weights


def hf_to_torch_dist(rank: int, world_size: int, port: int, source: str, output: str) -> None:
    """Writes OUTPUT/release, which --load starts from as from weights alone."""
    family = _with_further_layers(family_of(read_hf_config(source)), source)
    with _model(rank, world_size, port, source, family) as (shard, chunks):
        load_hf(shard, source)
        partial = Path(output).absolute().with_name(f".{Path(output).name}.partial")
        release = partial / checkpoint_dir.RELEASE
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
            release.mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save(sharded_weights(chunks), str(release))
        if rank == 0:
            shutil.copyfile(Path(source) / "config.json", release / "config.json")
            nothing_but_weights = {"progress": None, "has_optimizer": False, "layers": None, "layout": None}
            mtp_layers = shard.family.transformer_fields().get("mtp_num_layers", 0)
            (release / STATE).write_text(json.dumps(nothing_but_weights | {"mtp_layers": mtp_layers}))
            (partial / checkpoint_dir.MARKER).write_text(checkpoint_dir.RELEASE)
            os.sync()
            partial.rename(output)


def torch_dist_to_hf(rank: int, world_size: int, port: int, checkpoint: str, hf_config: str, output: str) -> None:
    """`hf_config` is a directory with the model's config.json and tokenizer, which go into OUTPUT as well."""
    saved = Saved.read(Path(checkpoint))
    family = family_of(read_hf_config(hf_config))
    if saved.head == "values":
        family = value_model(family)
    elif saved.mtp_layers:
        family = multi_token_model(family)
    with _model(rank, world_size, port, hf_config, family) as (shard, chunks):
        saved.load_weights(chunks)
        save_hf(shard, output, source=hf_config)


def _with_further_layers(family: Family, source: str) -> Family:
    """`family`, with its layers for multi-token prediction if `source` has them. With tied embeddings Megatron can't:
    they are passed on."""
    if not family.num_mtp_layers or family.tied:
        return family
    whole = multi_token_model(family)
    names = {name for mapping in whole.tensors.values() for name in mapping.names}
    return whole if names <= Checkpoint(source).files.keys() else family


@contextmanager
def _model(
    rank: int, world_size: int, port: int, directory: str, family: Family
) -> Iterator[tuple[Shard, list[torch.nn.Module]]]:
    """This rank's stage of the model that `directory` has the config.json of, with weights still to come."""
    config = load(
        [
            *("--hf-checkpoint", directory, "--rollout-batch-size", "1", "--device", "cpu"),
            *("--pipeline-model-parallel-size", str(world_size), "--transformer-impl", "local"),
            *("--actor-num-gpus-per-node", str(world_size), "--num-gpus-per-node", str(world_size)),
            "--bf16" if family.dtype == torch.bfloat16 else "--no-bf16",
        ]
    )
    parallel = start(config, rank, world_size, "127.0.0.1", port)
    try:
        chunks, _ = bare_models(config, transformer_config(config, parallel, family), family, parallel)
        yield Shard(family, chunks), chunks
        dist.barrier()
    finally:
        parallel.stop()


def stages(family: Family, workers: int) -> int:
    """How many ranks at most the layers can be divided among evenly."""
    layers = family.config["num_hidden_layers"]
    return max(count for count in range(1, min(workers, layers) + 1) if layers % count == 0)
