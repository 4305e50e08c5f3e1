"""Config: every option of a run, resolved.

Invariants: immutable and picklable; each option is in exactly one section and readable without naming it
(`config.rollout_batch_size` is `config.batches.rollout_batch_size`); no option has the name of a section or method.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from slime.config.section import FrozenDict
from slime.config.sections import (
    SECTIONS,
    Algorithm,
    Batches,
    Cluster,
    Data,
    Debug,
    Engine,
    Eval,
    Logging,
    Model,
    ModelArgs,
    Optimizer,
    Parallel,
    Reward,
    Rollout,
    Run,
)

SECTION_OF = {name: section for section, cls in SECTIONS.items() for name in cls.model_fields}
PASSED_THROUGH = ("sglang", "router", "megatron")


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), arbitrary_types_allowed=True)

    run: Run
    cluster: Cluster
    model: Model
    parallel: Parallel
    training: Optimizer
    data: Data
    batches: Batches
    rollout: Rollout
    reward: Reward
    eval: Eval
    algorithm: Algorithm
    engine: Engine
    logging: Logging
    debug: Debug
    model_args: ModelArgs
    sglang: FrozenDict = FrozenDict()  # options of SGLang that were set, by its own names with underscores
    router: FrozenDict = FrozenDict()  # the same for its router
    megatron: FrozenDict = FrozenDict()  # the same for Megatron's config dataclasses

    def __getattr__(self, name: str) -> Any:
        section = SECTION_OF.get(name)
        if section is None:
            raise AttributeError(f"the configuration has no option {name!r}")
        return getattr(getattr(self, section), name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all resolved options as YAML, to be given back as --config. Secrets are left out."""
        path = Path(path)
        body = {
            section: {
                name: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
                for name, value in getattr(self, section)
                if not SECTIONS[section].model_fields[name].json_schema_extra["trait"].secret
            }
            for section in SECTIONS
        } | {family: dict(getattr(self, family)) for family in PASSED_THROUGH}
        text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
        beside = path.with_name(path.name + ".tmp")
        beside.write_text("# The resolved configuration of a run. Give it back with: python train.py --config <this file>\n" + text)
        os.replace(beside, path)
