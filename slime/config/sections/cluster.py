"""Devices: how many, for which half, and the way of weights between the halves."""

from __future__ import annotations

from typing import Literal

from slime.config.section import Bytes, Count, FrozenDict, Hook, Index, Json, Minutes, Path, Section, option


class Cluster(Section):
    """Cluster and weight sync

    How many devices train, how many generate, whether they are the same, and how new weights reach the engines. A "GPU"
    is one device: on a machine without GPUs, one CPU process.
    """

    actor_num_nodes: Count = option(1, "Nodes that train.")
    actor_num_gpus_per_node: Count = option(
        8, "Training devices on each of these nodes; nodes x devices = training ranks."
    )
    critic_num_nodes: Count | None = option(
        None, "Nodes that train the critic.", derived="--actor-num-nodes, if the critic has devices of its own"
    )
    critic_num_gpus_per_node: Count | None = option(
        None,
        "Training devices of the critic on each of these nodes. It has as many as the policy: on devices of its own"
        " it is trained at the same time. Both unset: it shares those of the policy, in turns.",
        derived="--actor-num-gpus-per-node, if --critic-num-nodes is given",
    )
    rollout_num_gpus: Index | None = option(
        None, "Devices that generate, over all nodes.", derived="the training devices when colocated, else required"
    )
    rollout_num_gpus_per_engine: Count = option(
        1, "Devices of one engine: its tensor-parallel size. rollout-num-gpus / this = number of engines."
    )
    num_gpus_per_node: Count = option(8, "Devices of one node, for engines that span nodes and for the placement.")
    cpu_slots: Count | None = option(
        None,
        "Devices that a machine without GPUs counts as having, one process each; more than its cores is slow.",
        derived="the number of cores",
    )
    colocate: bool = option(
        False, "Train and generate on the same devices in turns, instead of on separate ones at once."
    )
    offload_rollout: bool | None = option(
        None, "Release the engines' weights and KV cache while training.", derived="--colocate"
    )
    distributed_backend: Literal["nccl", "gloo"] = option(
        "nccl", "torch.distributed backend of the training ranks on GPUs. On a CPU it is always gloo."
    )
    nccl_communicator_config_path: str | None = option(
        None, "YAML file with NCCL's settings for each of Megatron's process groups, as Megatron reads it; GPUs only."
    )
    distributed_timeout_minutes: Minutes = option(
        10.0, "After this time a collective operation that some rank never entered is an error instead of a stall."
    )
    train_env_vars: Json = option(
        FrozenDict(), 'Environment variables of the training processes, e.g. \'{"NCCL_DEBUG": "WARN"}\'.'
    )
    update_weight_mode: Literal["full"] = option("full", "What an update of the engines sends. full: every tensor.")
    update_weight_transport: Literal["nccl", "disk"] = option(
        "nccl",
        "How weights travel when training and generation are decoupled. nccl: a broadcast into the engines (gloo on a"
        " CPU). disk: a Hugging Face checkpoint that the engines read. Colocated halves share memory and do not ask.",
    )
    update_weight_disk_dir: Path | None = option(
        None,
        "Where --update-weight-transport disk writes, a directory for each update; every node sees it.",
        derived="<run-dir>/weights",
    )
    update_weight_disk_keep_files: bool = option(False, "Keep these directories; else each is removed once loaded.")
    custom_update_weight_post_write_path: Hook | None = option(
        None,
        "post_write(args, directory, weight_version): called on the first training rank when such a directory is"
        " written and before the engines read it.",
    )
    update_weight_buffer_size: Bytes = option(
        512 * 1024**2, "Weights are sent in buckets of this size; larger is faster and takes this much more memory."
    )
    check_weight_update_equal: bool = option(
        False,
        "After each sync compare checksums of the trainer's and of the engines' weights; a difference stops the run.",
    )
