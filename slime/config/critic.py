"""The configuration of the critic's trainer: that of the policy, with other weights, learning rate and checkpoints."""

from __future__ import annotations

from typing import Any

from slime.config.checkpoint_dir import is_model, of_critic
from slime.config.config import Config

OF_THE_POLICY = {
    "use_kl_loss": False,
    "kl_coef": 0.0,
    "use_opd": False,
    "ref_update_interval": None,
    "only_train_params_name_list": (),
    "freeze_params_name_list": (),
    "num_critic_only_steps": 0,
}
"""What is said of the policy alone -> what leaves it out."""


def critic_config(config: Config) -> Config:
    """`load` is a directory of the critic's checkpoints, and `critic_load` then that of the policy's (see
    checkpoint_dir)."""
    checkpoints = of_critic(config)
    start: dict[str, Any] = {"load": checkpoints and str(checkpoints), "critic_load": config.load}
    if config.critic_load is not None and is_model(config.critic_load):
        start["hf_checkpoint"] = config.critic_load
    config = config.replace(**OF_THE_POLICY, **start, lr=config.critic_lr, save=config.critic_save)
    return config.of_role("critic")


def learners(config: Config) -> list[Config]:
    """Of each model that is trained: of the policy and, where there is one, of its critic."""
    if config.debug_rollout_only:
        return []
    return [config.of_role("actor"), *([critic_config(config)] if config.has_critic else [])]
