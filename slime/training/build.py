"""A model ready to train, from config.json: Megatron's GPTModel, its weights, gradient buffers, optimizer and schedule.

What the model is comes from slime.models (its Family), how it is divided and trained from the options; any field of
Megatron's config dataclasses that was given by name overrides what is chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import (
    MegatronOptimizer,
    OptimizerConfig,
    ParamKey,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch import nn

from slime.config import Config, kernels
from slime.models import Family, Shard, load_hf
from slime.training import cpu_adam  # noqa: F401 - changes Megatron's
from slime.training.freezing import freeze
from slime.training.layers import block_spec, multi_token_spec
from slime.training.multi_token import MultiTokenModel
from slime.training.parallel import Parallel
from slime.training.provider import provided
from slime.training.saved import Saved
from slime.training.value_head import ValueHead
from slime.training.weights import WeightCopy

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.uint8}


@dataclass(frozen=True, slots=True)
class Model:
    """This rank's part of the policy; `chunks` has a model for each virtual pipeline stage, wrapped for reduction."""

    parallel: Parallel
    config: TransformerConfig
    chunks: list[DistributedDataParallel]
    shard: Shard
    optimizer: MegatronOptimizer
    schedule: OptimizerParamScheduler
    frozen: dict[str, WeightCopy]  # models of the same architecture that only score: "ref", "teacher"


def build(
    config: Config,
    parallel: Parallel,
    family: Family,
    *,
    frozen: Mapping[str, Path | Saved],
    saved: Saved | None = None,
) -> Model:
    """Builds the model with the weights of --hf-checkpoint, or `saved` ones, and a copy of each in `frozen`.

    Raises:
        ValueError: options that do not go together.
        slime.models.CheckpointError, ModelError: weights or a model that can't be read.
    """
    transformer = transformer_config(config, parallel, family)
    bare, models = bare_models(config, transformer, family, parallel)
    shard = Shard(family, bare)
    copies = {}
    for name, weights in frozen.items():
        if isinstance(weights, Saved):
            weights.check(family, transformer)
            weights.load_weights(bare)
        else:
            load_hf(shard, weights)
        copies[name] = WeightCopy(bare)
    if saved is None:
        load_hf(shard, config.hf_checkpoint)
    else:
        saved.check(family, transformer, resumed_by=config)
        saved.load_weights(bare)
    freeze(bare, config, parallel)

    ddp_config = DistributedDataParallelConfig(
        **{
            "grad_reduce_in_fp32": True,
            "use_distributed_optimizer": config.use_distributed_optimizer,
            "check_for_nan_in_grad": True,
            **_fields(DistributedDataParallelConfig, config.megatron),
        }
    )
    chunks = [
        # As Megatron does: of virtual stages only the first has a reduction that can hide behind other work.
        DistributedDataParallel(transformer, ddp_config, model, disable_bucketing=index > 0)
        for index, model in enumerate(models)
    ]
    transformer.no_sync_func = [chunk.no_sync for chunk in chunks] if len(chunks) > 1 else chunks[0].no_sync
    transformer.finalize_model_grads_func = _sum_gradients
    optimizer_config = _optimizer_config(config, parallel)
    overrides = get_standard_config_overrides(optimizer_config)
    if family.has_value_head:
        # In a group of its own: of one that mixes float32 with bfloat16 Megatron saves the wrong parameters' state.
        overrides[ParamKey(name="*output_layer.weight")] = {"wd_mult": 1.0}
    optimizer = get_megatron_optimizer(optimizer_config, chunks, overrides, use_gloo_process_groups=False)
    transformer.grad_scale_func = optimizer.scale_loss
    return Model(parallel, transformer, chunks, shard, optimizer, _schedule(config, optimizer), copies)


def bare_models(
    config: Config, transformer: TransformerConfig, family: Family, parallel: Parallel
) -> tuple[list[GPTModel], list[nn.Module]]:
    """This rank's chunks, one a virtual stage, and the same as training wraps them, which with --bf16 has cast them."""
    bare = [_chunk(config, transformer, family, parallel, stage) for stage in _virtual_stages(transformer)]
    return bare, [_in_bf16(transformer, chunk) for chunk in bare] if config.bf16 else bare


def transformer_config(config: Config, parallel: Parallel, family: Family) -> TransformerConfig:
    """Raises ValueError in Megatron's words for what Megatron refuses."""
    on_cpu = not parallel.device.is_cuda
    implementation = kernels.layers(config, on_gpu=parallel.device.is_cuda)
    virtual = config.megatron.get("virtual_pipeline_model_parallel_size")
    dtype = torch.bfloat16 if config.bf16 else torch.float32
    model = family.transformer_fields()
    fields = {
        **model,
        "transformer_impl": implementation,
        "tensor_model_parallel_size": config.tensor_model_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_model_parallel_size,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_model_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        **({"cp_comm_type": "all_gather"} if config.allgather_cp else {}),
        "sequence_parallel": config.sequence_parallel and config.tensor_model_parallel_size > 1,
        "bf16": config.bf16,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "use_cpu_initialization": on_cpu,
        # The loss comes divided by sizes of the global batch. So Megatron divides by nothing, and sums over ranks.
        "calculate_per_token_loss": True,
        "variable_seq_lengths": True,  # packed rows differ in length, and pipeline stages have to tell each other
        "moe_token_dispatcher_type": "alltoall",
        # gloo still reads an output that it sends when this would free it: wrong losses.
        "deallocate_pipeline_outputs": not on_cpu,
        "mtp_loss_scaling_factor": config.mtp_loss_scaling_factor,
        "mtp_detach_heads": True,  # the policy learns from its own loss alone
        **(
            {"moe_grouped_gemm": True, "apply_rope_fusion": True}
            if implementation == kernels.TRANSFORMER_ENGINE
            else {}
        ),
        # Without it virtual stages on gloo receive each other's tensors.
        **({"overlap_p2p_comm": True, "batch_p2p_comm": False} if virtual else {}),
    }
    is_latent = model.get("multi_latent_attention", False)
    if is_latent and config.tensor_model_parallel_size > 1 and not config.sequence_parallel:
        raise ValueError("--tensor-model-parallel-size above 1 needs --sequence-parallel to train latent attention")
    if is_latent and model["rope_type"] != "yarn":
        fields["apply_rope_fusion"] = False  # Megatron has that kernel for YaRN alone
    cls = MLATransformerConfig if is_latent else TransformerConfig
    return cls(**{**fields, **_fields(cls, config.megatron)})


def _virtual_stages(config: TransformerConfig) -> Sequence[int | None]:
    size = config.virtual_pipeline_model_parallel_size
    return range(size) if size else [None]


def _chunk(
    config: Config, transformer: TransformerConfig, family: Family, parallel: Parallel, vp_stage: int | None
) -> GPTModel:
    def usual(pre_process: bool, post_process: bool, vp_stage: int | None) -> GPTModel:
        block = block_spec(transformer, post_norms=family.post_norms, vp_stage=vp_stage)
        further = {}
        if transformer.mtp_num_layers:
            further = {"mtp_block_spec": multi_token_spec(transformer, block, vp_stage=vp_stage)}
        return (MultiTokenModel if further else GPTModel)(
            config=transformer,
            transformer_layer_spec=block,
            pre_process=pre_process,
            post_process=post_process,
            parallel_output=True,
            vp_stage=vp_stage,
            **further,
            **family.gpt_arguments(parallel.tp_size),
        )

    model = provided(
        config.custom_model_provider_path,
        usual,
        pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        vp_stage=vp_stage,
    )
    if model.post_process and family.has_value_head:
        model.output_layer = ValueHead(transformer, model.pg_collection.tp)
    elif model.post_process:
        model.output_layer.sequence_parallel = False  # forward.py gathers, and picks, before it
    return model.to(parallel.device.torch)


def _in_bf16(transformer: TransformerConfig, chunk: GPTModel) -> Float16Module:
    """Before weights are loaded: biases of routers and value heads stay in float32, and must not have been rounded."""
    model = Float16Module(transformer, chunk)
    for module in chunk.modules():
        if isinstance(module, TopKRouter):
            module._maintain_float32_expert_bias()
        if isinstance(module, ValueHead):
            module.float()
    return model


def _optimizer_config(config: Config, parallel: Parallel) -> OptimizerConfig:
    return OptimizerConfig(
        **{
            "optimizer": config.optimizer,
            "lr": config.lr,
            "min_lr": config.min_lr,
            "weight_decay": config.weight_decay,
            "adam_beta1": config.adam_beta1,
            "adam_beta2": config.adam_beta2,
            "adam_eps": config.adam_eps,
            "clip_grad": config.clip_grad,
            "bf16": config.bf16,
            "params_dtype": torch.bfloat16 if config.bf16 else torch.float32,
            "use_distributed_optimizer": config.use_distributed_optimizer,
            "optimizer_offload_fraction": 1.0,  # of --optimizer-cpu-offload; Megatron's own default offloads nothing
            "pin_cpu_grads": parallel.device.is_cuda,
            **_fields(OptimizerConfig, config.megatron),
        }
    )


def _schedule(config: Config, optimizer: MegatronOptimizer) -> OptimizerParamScheduler:
    """Counts optimizer steps. Raises ValueError where the decay has no known length, or none after warm-up."""
    steps = config.lr_decay_iters
    if steps is None and config.num_policy_rollouts is not None:
        steps = max(config.num_policy_rollouts, 1) * config.num_steps_per_rollout
    if steps is None:
        if config.lr_decay_style != "constant":
            raise ValueError(
                f"--lr-decay-style {config.lr_decay_style}: over how many steps? give --lr-decay-iters or --num-rollout"
            )
        steps = config.lr_warmup_iters + 1
    if config.lr_warmup_iters >= steps:
        if config.lr_decay_style != "constant":
            raise ValueError(
                f"--lr-warmup-iters {config.lr_warmup_iters} leaves none of the {steps} optimizer steps for the decay"
            )
        steps = config.lr_warmup_iters + 1
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=config.lr,
        min_lr=min(config.min_lr, config.lr),  # it may be above a constant rate, which it says nothing of
        lr_warmup_steps=config.lr_warmup_iters,
        lr_decay_steps=steps,
        lr_decay_style=config.lr_decay_style,
        start_wd=config.weight_decay,
        end_wd=config.weight_decay,
        wd_incr_steps=steps,
        wd_incr_style="constant",
    )


def _sum_gradients(chunks: list[nn.Module], num_tokens: torch.Tensor | None, **options: Any) -> None:
    """Megatron's reduction over ranks, without its division by a count of tokens."""
    finalize_model_grads(chunks, None, **options)


def _fields(dataclass_: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are fields of a Megatron dataclass, with names of enum members and dtypes turned into these."""
    kinds = get_type_hints(dataclass_)
    names = {field.name for field in dataclasses.fields(dataclass_)}
    return {name: _meant(kinds[name], value) for name, value in options.items() if name in names}


def _meant(kind: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    for cls in (kind, *get_args(kind)):
        if isinstance(cls, type) and issubclass(cls, Enum):
            return cls[value]
        if cls is torch.dtype:
            return DTYPES[value]
    return value
