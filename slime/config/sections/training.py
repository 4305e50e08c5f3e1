"""Megatron's half: how the model is divided, and how it is optimised."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slime.config.section import Count, Hook, Index, NonNegative, Path, Positive, Rate, Section, Seed, Strings, option


class Parallel(Section):
    """Parallelism of training

    Megatron's names. Ranks = TP x PP x CP x DP; DP is what remains.
    """

    tensor_model_parallel_size: Count = option(1, "TP: ranks that share every layer's matrices. Keep it within a node.")
    pipeline_model_parallel_size: Count = option(1, "PP: stages that the layers are divided into.")
    context_parallel_size: Count = option(1, "CP: ranks that share the tokens of a sequence.")
    expert_model_parallel_size: Count = option(1, "EP: ranks that the experts of a layer are divided among.")
    expert_tensor_parallel_size: Count | None = option(
        None, "ETP: ranks that share an expert's matrices.", derived="--tensor-model-parallel-size"
    )
    sequence_parallel: bool = option(
        False,
        "Divide the activations between the matrices of a layer along the sequence as well; saves memory under TP.",
    )
    use_distributed_optimizer: bool = option(True, "Divide the optimizer state among the data-parallel ranks.")
    allgather_cp: bool = option(
        False,
        "Under context parallelism, attention gathers keys and values of all ranks, instead of passing them around a"
        " ring. The local layers always do; Transformer Engine's then have cp_comm_type all_gather.",
    )
    transformer_impl: Literal["local", "transformer_engine"] | None = option(
        None,
        "Megatron's layers in plain PyTorch, or in Transformer Engine.",
        derived="local on a CPU, else transformer_engine",
    )


class Optimizer(Section):
    """Optimizer"""

    optimizer: Literal["adam"] = option("adam", "AdamW, with weight decay outside of the gradient.")
    lr: Rate = option(1e-6, "Learning rate, after warm-up.")
    min_lr: Rate = option(0.0, "Learning rate at the end of the decay.")
    lr_decay_style: Literal["constant", "linear", "cosine"] = option(
        "constant", "Shape of the decay from lr to min-lr."
    )
    lr_warmup_iters: Index = option(0, "Optimizer steps in which the learning rate rises linearly from 0.")
    lr_decay_iters: Count | None = option(
        None, "Optimizer steps, warm-up included, until min-lr.", derived="all optimizer steps of the run"
    )
    weight_decay: NonNegative = option(0.01, "Weight decay, for matrices; norms and biases have none.")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = option(0.9, "Decay of Adam's mean of the gradient.")
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = option(0.999, "Decay of Adam's mean of the squared gradient.")
    adam_eps: Positive = option(1e-8, "Added to the root in Adam's denominator.")
    clip_grad: NonNegative = option(
        1.0, "Largest global norm of the gradient; a larger one is scaled down. 0: no limit."
    )
    reset_optimizer_states: bool = option(
        False, "Set Adam's means and its count of steps to zero before each rollout is trained on."
    )
    bf16: bool = option(True, "Train in bfloat16 with float32 master weights. --no-bf16: float32 throughout.")
    data_pad_size_multiplier: Count | None = option(
        None,
        "Packed rows are padded to a multiple of this many tokens, so that memory is allocated in few sizes.",
        derived="128 on GPUs, 1 on a CPU",
    )
    megatron_config_path: Path | None = option(
        None,
        "YAML file with the sections actor and critic: options of the optimizer and of Megatron that hold for one of"
        " the two alone, and more than the command line.",
    )
    custom_model_provider_path: Hook | None = option(
        None,
        "model_provider(pre_process, post_process, vp_stage) -> a GPTModel: builds this rank's part of the model; see"
        " slime.training.provider.usual_model.",
    )
    custom_megatron_init_path: Hook | None = option(
        None, "megatron_init(args): called in each training process, once its process groups are there."
    )
    custom_megatron_before_log_prob_hook_path: Hook | None = option(
        None,
        "before_log_prob(args, model, store_prefix): called before the log-probs of a rollout are computed; the prefix"
        " is '' for the policy's, 'ref_' or 'teacher_'. model is the list of this rank's model chunks.",
    )
    custom_megatron_before_train_step_hook_path: Hook | None = option(
        None,
        "before_train_step(args, rollout_id, step_id, model, optimizer, opt_param_scheduler): called before each"
        " optimizer step of the policy.",
    )
    seed: Seed = option(1234, "Seed of the training processes.")
    only_train_params_name_list: Strings = option(
        (), "Train only parameters whose name, as Megatron calls them, has one of these regular expressions in it."
    )
    freeze_params_name_list: Strings = option((), "Do not train parameters whose name has one of these in it.")
    enable_mtp_training: bool = option(
        False,
        "Train the layers that predict further tokens (num_nextn_predict_layers of config.json) on the sampled tokens."
        " The rest of the model learns nothing from that, unless --no-mtp-detach-heads. Without it they are saved as"
        " they were.",
    )
    mtp_loss_scaling_factor: NonNegative = option(0.2, "Weight of that loss.")
    recompute_loss_function: bool = option(
        False, "Do not keep logits from the forward to the backward pass; compute them again there."
    )
    log_probs_chunk_size: Annotated[int, Field(ge=-1)] = option(
        -1,
        "Response tokens of a micro-batch whose logits are in memory at a time; they are then computed again in the"
        " backward pass. -1: all of them, once.",
    )
