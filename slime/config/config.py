"""Config: every option of a run, resolved.

Invariants: immutable and picklable; each option is in exactly one section and readable without naming it
(`config.rollout_batch_size` is `config.batches.rollout_batch_size`); no option has the name of a section or method.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from slime.config import unknown
from slime.config.catalogue import OWN, READERS, SECTION_OF, family_of
from slime.config.derive import ROLLOUT_FUNCTIONS
from slime.config.section import FrozenDict, is_secret
from slime.config.sections import (
    SECTIONS,
    Algorithm,
    Batches,
    Checkpoints,
    Cluster,
    Critic,
    Data,
    Debug,
    Distillation,
    Engine,
    Eval,
    Faults,
    Logging,
    Model,
    ModelArgs,
    OffPolicy,
    Optimizer,
    Parallel,
    Reward,
    Rollout,
    Run,
)


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), arbitrary_types_allowed=True)

    run: Run
    cluster: Cluster
    model: Model
    checkpoints: Checkpoints
    parallel: Parallel
    training: Optimizer
    data: Data
    batches: Batches
    rollout: Rollout
    reward: Reward
    eval: Eval
    algorithm: Algorithm
    critic: Critic
    off_policy: OffPolicy
    distillation: Distillation
    engine: Engine
    faults: Faults
    logging: Logging
    debug: Debug
    model_args: ModelArgs
    sglang: FrozenDict = FrozenDict()  # options of SGLang that were set, by its own names with underscores
    router: FrozenDict = FrozenDict()  # the same for its router
    # Name of each served model -> (host, port) of its router, and what the routers ask for; once they are up.
    sglang_model_routers: FrozenDict = FrozenDict()
    sglang_router_token: str | None = Field(None, repr=False)
    megatron: FrozenDict = FrozenDict()  # the same for Megatron's config dataclasses
    roles: FrozenDict = FrozenDict()  # role -> options that --megatron-config-path gives it alone
    custom: FrozenDict = FrozenDict()  # of --custom-config-path

    def __getattr__(self, name: str) -> Any:
        """An option of any section by its name, or of a library as it was set (`sglang_dtype`, `recompute_method`)."""
        if name.startswith("_") or name in type(self).model_fields:  # Python's own questions, also while unpickling
            raise AttributeError(name)
        if section := SECTION_OF.get(name):
            return getattr(getattr(self, section), name)
        if name in self.custom:
            return self.custom[name]
        family = family_of(name)
        own_name = name.removeprefix(f"{family}_")
        if own_name in (passed := getattr(self, family)):
            return passed[own_name]
        raise AttributeError(f"the configuration has no option {name!r}; " + ", ".join(unknown.explain(name)))

    def replace(self, **options: Any) -> Config:
        """The same configuration with some options of ours set to other values. Raises ValueError for a wrong value."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            sections.setdefault(SECTION_OF[name], {})[name] = OWN[name].parse(value)
        return self.model_copy(
            update={s: getattr(self, s).model_copy(update=changed) for s, changed in sections.items()}
        )

    def of_role(self, role: str) -> Config:
        """As the policy ("actor") or the critic trains by it."""
        given = self.roles.get(role, {})
        passed = {name: value for name, value in given.items() if name not in OWN}
        own = self.replace(**{name: value for name, value in given.items() if name in OWN})
        return own.model_copy(update={"megatron": FrozenDict({**self.megatron, **passed})})

    def with_routers(self, policy: str, routers: Mapping[str, tuple[str, int]], token: str | None) -> Config:
        """The same configuration where it is known at which router each served model is; `policy` names the one that
        makes the rollouts."""
        host, port = routers[policy]
        at_policy = self.replace(sglang_router_ip=host, sglang_router_port=port)
        return at_policy.model_copy(update={"sglang_model_routers": FrozenDict(routers), "sglang_router_token": token})

    @property
    def has_engines(self) -> bool:
        """Whether anything is generated: demonstrations and recorded rollouts are there already."""
        return self.loss_type != "sft_loss" and not self.debug_train_only

    @property
    def has_critic(self) -> bool:
        """Whether a value function is trained beside the policy."""
        compares = self.loss_type != "sft_loss" and not self.disable_compute_advantages_and_returns
        return self.advantage_estimator == "ppo" and compares and not self.debug_rollout_only

    @property
    def num_policy_rollouts(self) -> int | None:
        """How many of --num-rollout the policy learns from: not the first ones that its critic trains on alone."""
        if self.num_rollout is None:
            return None
        return self.num_rollout - (self.num_critic_only_steps if self.has_critic else 0)

    @property
    def critic_has_own_devices(self) -> bool:
        """Whether the critic trains at the same time as the policy, instead of in turns on the same devices."""
        return self.has_critic and self.critic_num_gpus_per_node is not None

    @property
    def aborts_generation(self) -> bool:
        """Whether more may be under way when a batch is full."""
        too_much = self.over_sampling_batch_size > self.rollout_batch_size
        return self.max_weight_staleness is None and (too_much or self.dynamic_sampling_filter_path is not None)

    @property
    def evaluates_beside_training(self) -> bool:
        """Whether training, and generation with it, goes on during an evaluation: not where that might abort what the
        engines do, which would be the evaluation, too."""
        if self.max_weight_staleness is not None:
            return True
        ours = self.rollout_function_path == ROLLOUT_FUNCTIONS["policy_loss"]
        return bool(self.async_depth) and ours and not self.aborts_generation

    def saves_after(self, rollout_id: int) -> bool:
        """Whether a checkpoint or export is due after this rollout: every --save-interval, and after the last."""
        done = rollout_id + 1
        if self.debug_rollout_only or (self.save is None and self.save_hf is None):
            return False
        return done == self.num_rollout or (self.save_interval is not None and done % self.save_interval == 0)

    def evaluates_at(self, done: int) -> bool:
        """Whether held-out prompts are due after `done` rollouts: before the first, every --eval-interval, and after
        the last."""
        if self.eval_interval is None or not self.has_engines:
            return False
        if done == 0:
            return not self.skip_eval_before_train
        return done == self.num_rollout or done % self.eval_interval == 0

    def updates_weights_after(self, rollout_id: int) -> bool:
        """Whether the engines get new weights after this rollout: every --update-weights-interval, and after the
        last."""
        done = rollout_id + 1
        return done == self.num_rollout or done % self.update_weights_interval == 0

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Section -> option -> value, in plain YAML types and without secrets."""
        own = {
            title: {name: _plain(value) for name, value in getattr(self, title) if not OWN[name].secret}
            for title in SECTIONS
        }
        return own | {family: _plain(getattr(self, family)) for family in READERS}

    def write_yaml(self, path: str | os.PathLike[str]) -> None:
        """Write all resolved options as YAML, to be given back as --config. Secrets are left out."""
        path = Path(path)
        beside = path.with_name(path.name + ".partial")
        beside.write_text(
            HEADER + yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True), encoding="utf-8"
        )
        os.replace(beside, path)


HEADER = """\
# All options of a run, resolved. To run the same again: python train.py --config <this file> --run-name <another name>
# Secrets are left out. Lists under sglang, router and megatron are what was passed through to them.
"""


def _plain(value: Any) -> Any:
    """Tuples as lists, dicts without what looks like a secret."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if not is_secret(key)}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
