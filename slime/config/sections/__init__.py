"""The options, one class a group."""

from slime.config.sections.algorithm import Algorithm, Critic, Distillation, OffPolicy
from slime.config.sections.checkpoints import Checkpoints
from slime.config.sections.cluster import Cluster
from slime.config.sections.data import Batches, Data
from slime.config.sections.engine import Engine, Faults
from slime.config.sections.logging import Debug, Logging
from slime.config.sections.model import Model, ModelArgs
from slime.config.sections.rollout import Eval, Reward, Rollout
from slime.config.sections.run import Run
from slime.config.sections.training import Optimizer, Parallel

SECTIONS = {
    "run": Run,
    "cluster": Cluster,
    "model": Model,
    "checkpoints": Checkpoints,
    "parallel": Parallel,
    "training": Optimizer,
    "data": Data,
    "batches": Batches,
    "rollout": Rollout,
    "reward": Reward,
    "eval": Eval,
    "algorithm": Algorithm,
    "critic": Critic,
    "off_policy": OffPolicy,
    "distillation": Distillation,
    "engine": Engine,
    "faults": Faults,
    "logging": Logging,
    "debug": Debug,
    "model_args": ModelArgs,
}
