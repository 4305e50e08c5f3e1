"""Rules between Megatron's own options: what Megatron refuses, but only once there are training processes.

Its reasons are in megatron/core/transformer/transformer_config.py and, of what overlaps, in the command line of its own
trainer, megatron/training/arguments.py. Each rule holds for policy and critic, whose options may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slime.config.config import Config
from slime.config.critic import learners
from slime.config.errors import Problem
from slime.config.rules import Rules

MEGATRON = Rules()
OF_LEARNERS = ("megatron_config_path", "debug_rollout_only", "advantage_estimator", "loss_type")
UNSERVED = {
    "use_megatron_fsdp": "another wrapper of the model: weights and checkpoints are read from that of the distributed"
    " optimizer",
    "num_distributed_optimizer_instances": "needs groups of ranks that are not made here",
    "hierarchical_context_parallel_sizes": "needs groups of ranks that are not made here",
    "average_in_collective": "the loss is divided already, so that gradients are summed over the ranks",
}
"""Options of Megatron's that would fail, in its first step at the latest, beside what is built here -> why."""
UNIFORM = "--recompute-method uniform --recompute-num-layers 1"


def reads(*options: str) -> Callable[[Callable[[Config], Iterator[Problem]]], None]:
    """As for any rules; the rule is asked of each learner, and what holds for both is told once."""

    def add(rule: Callable[[Config], Iterator[Problem]]) -> None:
        @MEGATRON.reads(*OF_LEARNERS, *options)
        def of_learners(c: Config) -> Iterator[Problem]:
            yield from dict.fromkeys(problem for learner in learners(c) for problem in rule(learner))

    return add


@reads("recompute_granularity", "recompute_method", "recompute_num_layers")
def _recomputation_is_of_layers(c: Config) -> Iterator[Problem]:
    granularity, method, layers = (
        c.megatron.get(f"recompute_{name}") for name in ("granularity", "method", "num_layers")
    )
    if granularity == "full" and None in (method, layers):
        lacks = {"--recompute-method": method is None, "--recompute-num-layers": layers is None}
        missing = " and ".join(option for option, is_lacking in lacks.items() if is_lacking)
        what = f"full recomputes whole layers, and needs {missing}"
        yield Problem("--recompute-granularity", what, f"e.g. {UNIFORM}, which keeps the input of each layer")
    elif granularity == "selective" and layers is not None:
        what = "counts whole layers, and --recompute-granularity selective recomputes parts of each"
        yield Problem("--recompute-num-layers", what, "leave it out, or name the parts: --recompute-modules")
    elif layers is not None and layers < 1:
        yield Problem("--recompute-num-layers", f"{layers} is no number of layers", "give at least 1")


@reads("distribute_saved_activations", "recompute_granularity", "sequence_parallel", "tensor_model_parallel_size")
def _activations_are_divided_once(c: Config) -> Iterator[Problem]:
    divides = c.megatron.get("distribute_saved_activations") and c.megatron.get("recompute_granularity")
    if divides and c.sequence_parallel and c.tensor_model_parallel_size > 1:
        what = "exclude each other: what is kept of a layer is divided by sequence already"
        yield Problem("--distribute-saved-activations, --sequence-parallel", what, "leave one of them out")


@reads("enable_mtp_training", "recompute_granularity", "recompute_method", "recompute_num_layers")
def _further_layers_can_be_recomputed(c: Config) -> Iterator[Problem]:
    layers = c.megatron.get("recompute_method"), c.megatron.get("recompute_num_layers")
    is_full = c.megatron.get("recompute_granularity") == "full" and None not in layers
    if c.enable_mtp_training and is_full and layers != ("uniform", 1):
        what = "Megatron recomputes such a layer as one of uniform blocks of one"
        yield Problem("--enable-mtp-training", what, f"give {UNIFORM}")


@reads("overlap_param_gather", "overlap_grad_reduce", "use_distributed_optimizer")
def _gathering_overlaps_by_buckets(c: Config) -> Iterator[Problem]:
    if not c.megatron.get("overlap_param_gather"):
        return
    option = "--overlap-param-gather"
    if not c.use_distributed_optimizer:
        what = "only the distributed optimizer divides the parameters that are gathered"
        yield Problem(f"{option}, --no-use-distributed-optimizer", what, "leave one of them out")
    elif not c.megatron.get("overlap_grad_reduce"):
        what = "needs --overlap-grad-reduce: without it all parameters are one bucket, and nothing overlaps"
        yield Problem(option, what, "add --overlap-grad-reduce, or leave it out")


@reads("bf16", "optimizer_cpu_offload", "use_distributed_optimizer")
def _offloaded_optimizer_has_master_weights(c: Config) -> Iterator[Problem]:
    if c.megatron.get("optimizer_cpu_offload") and not c.bf16:
        what = "is for --bf16: Megatron has no such optimizer in float32"
        yield Problem("--optimizer-cpu-offload", what, "leave one out")
    elif c.megatron.get("optimizer_cpu_offload") and not c.use_distributed_optimizer:
        what = "exclude each other: Megatron's other optimizer keeps master weights that it would not find on the host"
        yield Problem("--optimizer-cpu-offload, --no-use-distributed-optimizer", what, "leave one of them out")


@reads(*UNSERVED)
def _what_is_built_serves_it(c: Config) -> Iterator[Problem]:
    for name, why in UNSERVED.items():
        value = c.megatron.get(name)
        if value is True or value not in (None, False, 1):
            yield Problem("--" + name.replace("_", "-"), why, "leave it out")


@reads("delay_wgrad_compute", "overlap_moe_expert_parallel_comm")
def _delayed_gradients_hide_communication(c: Config) -> Iterator[Problem]:
    if c.megatron.get("delay_wgrad_compute") and not c.megatron.get("overlap_moe_expert_parallel_comm"):
        what = "Megatron delays gradients beside --overlap-moe-expert-parallel-comm alone"
        yield Problem("--delay-wgrad-compute", what, "leave it out")


@reads("hidden_dropout", "attention_dropout")
def _old_and_new_policy_are_the_same_at_first(c: Config) -> Iterator[Problem]:
    for name in ("hidden_dropout", "attention_dropout"):
        if (share := c.megatron.get(name)) and c.loss_type == "policy_loss":
            what = f"{share} would also be dropped out in the passes that score, and ratios be noise"
            yield Problem("--" + name.replace("_", "-"), what, "leave it out; --loss-type sft_loss may have it")
