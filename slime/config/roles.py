"""--megatron-config-path: Megatron's options that the policy and its critic do not share.

    actor:
      recompute_granularity: selective
    critic:
      lr: 1e-5
      weight_decay: 0.1

A section counts for its role alone, and more than the command line. How ranks are divided is the same for both, since
each rank of one exchanges values with one of the other, so that no section may say it.
"""

from __future__ import annotations

from slime.config import files
from slime.config.catalogue import SECTION_OF
from slime.config.command_line import Given
from slime.config.errors import Problem
from slime.config.option import Option

ROLES = ("actor", "critic")
OPTION = "--megatron-config-path"
OF_BOTH = frozenset({
    "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "microbatch_group_size_per_vp_stage",
})  # fmt: skip
"""Megatron's options of how ranks are divided, beyond ours."""


def read(file: str) -> tuple[dict[str, list[Given]], list[Problem]]:
    """What the file gives each role. Raises files.Unusable."""
    roles: dict[str, list[Given]] = {}
    problems = []
    for key, node in files.compose(file, OPTION).value:
        if key.value not in ROLES:
            where = f"{file}:{key.start_mark.line + 1}: {key.value}"
            problems.append(Problem(where, "is no role", f"{OPTION} has the sections {' and '.join(ROLES)}"))
        elif not isinstance(node, files.Map):
            where = f"{file}:{key.start_mark.line + 1}: {key.value}"
            problems.append(Problem(where, "is a section: options follow it, indented"))
        else:
            roles[key.value], wrong = files.options(file, node)
            problems += wrong
    return roles, problems


def may_differ(option: Option) -> bool:
    """Whether policy and critic may have it differently: an option of the optimizer, or one that passes to Megatron."""
    if option.family:
        return option.family == "megatron" and option.name not in OF_BOTH
    return SECTION_OF[option.name] == "training"
