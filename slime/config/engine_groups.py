"""Engine groups: which models are served, by which engines, on how many devices.

A run without --sglang-config serves one model, the policy, by one group of engines: it is what such a file would say.

Invariants: the order of models and groups is the order of their devices; a model has a router of its own; the policy,
which makes the rollouts, is the first model that gets weight updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from slime.config import groups_file
from slime.config.config import Config
from slime.config.errors import ConfigError
from slime.config.section import FrozenDict

WorkerType = Literal["regular", "prefill", "decode", "placeholder"]
POLICY = "policy"


@dataclass(frozen=True)
class EngineGroup:
    """Engines that are alike. A placeholder keeps its devices free, and has none. `overrides` are SGLang's options, by
    name, which win over those of the command line; `addresses` are host:port of engines that somebody else started."""

    worker_type: WorkerType
    num_gpus: int
    num_gpus_per_engine: int
    overrides: FrozenDict = field(default_factory=FrozenDict)
    addresses: tuple[str, ...] = ()

    @property
    def num_engines(self) -> int:
        if self.worker_type == "placeholder":
            return 0
        return len(self.addresses) or self.num_gpus // self.num_gpus_per_engine


@dataclass(frozen=True)
class ServedModel:
    """`path` is a directory in Hugging Face's format; `update_weights` says whether training's weights replace what is
    in it."""

    name: str
    path: str
    update_weights: bool
    groups: tuple[EngineGroup, ...]

    @property
    def is_disaggregated(self) -> bool:
        """Whether some engines compute prompts and others the responses, from caches that they are sent."""
        return any(group.worker_type in ("prefill", "decode") for group in self.groups)

    @property
    def num_gpus(self) -> int:
        return sum(group.num_gpus for group in self.groups if group.num_engines)


@dataclass(frozen=True)
class PlannedEngine:
    """One engine of a run. `first_device` counts over those of all groups; `address` is of one that runs already."""

    index: int
    model: ServedModel
    group: EngineGroup
    first_device: int
    address: str | None = None

    @property
    def num_devices(self) -> int:
        return self.group.num_gpus_per_engine


def served_models(config: Config) -> tuple[ServedModel, ...]:
    """Of --sglang-config, which is read here, or the one that the other options describe. Raises ConfigError."""
    if not config.has_engines:
        return ()
    if config.sglang_config is not None:
        stated, problems = groups_file.read(config.sglang_config)
        if problems:
            raise ConfigError(problems)
        return tuple(_stated(model, config) for model in stated)
    size, total = config.rollout_num_gpus_per_engine, config.rollout_num_gpus or 0
    if addresses := config.rollout_external_engine_addrs:
        groups = [EngineGroup("regular", 0, size, addresses=addresses)]
    elif config.prefill_num_servers is not None:
        prefill = config.prefill_num_servers * size
        groups = [EngineGroup("prefill", prefill, size), EngineGroup("decode", total - prefill, size)]
    else:
        groups = [EngineGroup("regular", total, size)]
    return (ServedModel(POLICY, config.hf_checkpoint, True, tuple(groups)),)


def policy_of(models: Sequence[ServedModel]) -> ServedModel:
    """The model that makes the rollouts; with --debug-rollout-only that may be one whose weights never change."""
    return next((model for model in models if model.update_weights), models[0])


def planned_engines(models: Sequence[ServedModel]) -> list[PlannedEngine]:
    """All engines, in the order of their devices."""
    engines: list[PlannedEngine] = []
    device = 0
    for model in models:
        for group in model.groups:
            for i in range(group.num_engines):
                address = group.addresses[i] if group.addresses else None
                first = device + i * group.num_gpus_per_engine
                engines.append(PlannedEngine(len(engines), model, group, first, address))
            device += group.num_gpus
    return engines


def _stated(model: groups_file.Stated, config: Config) -> ServedModel:
    """With what the file leaves open."""
    path = model.get("model_path", config.hf_checkpoint)
    groups = []
    for group in model["server_groups"]:
        size = group.get("num_gpus_per_engine", model.get("num_gpus_per_engine", config.rollout_num_gpus_per_engine))
        overrides = FrozenDict(group.get("overrides", {}))
        groups.append(EngineGroup(group.get("worker_type", "regular"), group["num_gpus"], size, overrides))
    return ServedModel(model["name"], path, model.get("update_weights", path == config.hf_checkpoint), tuple(groups))
