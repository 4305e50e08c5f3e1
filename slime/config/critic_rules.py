"""Rules between the options of the critic."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.config import Config
from slime.config.errors import Problem
from slime.config.rules import Rules

CRITIC = Rules()
reads = CRITIC.reads

OF_THE_CRITIC = {
    "critic_num_nodes": None,
    "critic_num_gpus_per_node": None,
    "critic_load": None,
    "critic_save": None,
    "critic_lr": None,
    "num_critic_only_steps": 0,
    "lambd": 1.0,
    "value_clip": 0.2,
}
"""Options that only a critic reads, with their defaults."""


@reads(*OF_THE_CRITIC, "advantage_estimator", "loss_type", "disable_compute_advantages_and_returns")
def _there_is_a_critic(c: Config) -> Iterator[Problem]:
    if c.has_critic or c.debug_rollout_only:
        return
    for option, default in OF_THE_CRITIC.items():
        if getattr(c, option) != default:
            flag = f"--{option.replace('_', '-')}"
            yield Problem(flag, "there is no critic that it is about", "add --advantage-estimator ppo, or leave it out")


@reads(
    "critic_num_nodes", "critic_num_gpus_per_node", "actor_num_nodes", "actor_num_gpus_per_node", "num_gpus_per_node"
)  # fmt: skip
def _divided_as_the_policy_is(c: Config) -> Iterator[Problem]:
    if not c.critic_has_own_devices:
        return
    own, policy = (
        nodes * per_node
        for nodes, per_node in (
            (c.critic_num_nodes, c.critic_num_gpus_per_node), (c.actor_num_nodes, c.actor_num_gpus_per_node)
        )
    )  # fmt: skip
    where = "--critic-num-nodes x --critic-num-gpus-per-node"
    if own != policy:
        yield Problem(
            where,
            f"the critic has {own} ranks, the policy {policy}: each rank of one exchanges values with one of the other",
            f"make it {policy} too, or leave both out: the critic then shares the policy's devices",
        )
    if c.critic_num_gpus_per_node > c.num_gpus_per_node:
        yield Problem(
            "--critic-num-gpus-per-node",
            f"{c.critic_num_gpus_per_node} are more than the {c.num_gpus_per_node} devices of a node",
            f"lower it, or say that nodes have more: --num-gpus-per-node {c.critic_num_gpus_per_node}",
        )


@reads("num_critic_only_steps", "num_rollout")
def _the_policy_is_trained_at_last(c: Config) -> Iterator[Problem]:
    if c.num_rollout is not None and 0 < c.num_rollout <= c.num_critic_only_steps:
        yield Problem(
            "--num-critic-only-steps",
            f"{c.num_critic_only_steps} leaves none of the {c.num_rollout} rollouts for the policy",
            "it counts from the first rollout",
        )


@reads("advantage_estimator", "save", "no_save_optim", "bf16", "use_distributed_optimizer")
def _the_optimizer_can_be_saved(c: Config) -> Iterator[Problem]:
    if c.has_critic and c.save and not c.no_save_optim and c.bf16 and not c.use_distributed_optimizer:
        yield Problem(
            "--no-use-distributed-optimizer",
            "Megatron's other optimizer can't save the state of a critic's last layer, which stays in float32",
            "leave it out, or add --no-bf16 or --no-save-optim",
        )


@reads("advantage_estimator", "save", "critic_save", "save_keep")
def _both_are_saved(c: Config) -> Iterator[Problem]:
    if not c.has_critic:
        return
    if c.critic_save is not None and c.save is None:
        yield Problem("--critic-save", "nothing could go on from a critic alone", "add --save DIR for the policy")
    if c.save_keep == 1:
        yield Problem(
            "--save-keep",
            "1 leaves no rollout of which policy and critic both have a checkpoint while a new one is written",
            "give at least 2",
        )
    for what, ours, critics in (("save", c.save, c.critic_save), ("load", c.load, c.critic_load)):
        if ours is not None and ours == critics:
            yield Problem(f"--critic-{what}", f"is --{what} itself", "policy and critic need directories of their own")
