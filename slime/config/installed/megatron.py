"""The options of the installed Megatron-core: the fields of its config dataclasses, with the text below each as help.

Values stay plain: an enum is given by the name of its member, a dtype as fp32, fp16, bf16 or fp8.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Literal

from slime.config.installed import source
from slime.config.option import Option

CLASSES = {
    "model_parallel_config.py": ("ModelParallelConfig",),
    "transformer/transformer_config.py": ("TransformerConfig", "MLATransformerConfig"),
    "optimizer/optimizer_config.py": ("OptimizerConfig",),
    "distributed/distributed_data_parallel_config.py": ("DistributedDataParallelConfig",),
}
RESERVED = {
    "num_moe_experts": "config.json (--num-experts)",
    "gated_linear_unit": "config.json (--swiglu)",
    "params_dtype": "--bf16",
    "fp16": "--bf16",
    "pipeline_dtype": "--bf16",
}
_DTYPES = Literal["fp32", "fp16", "bf16", "fp8"]


def read() -> dict[str, Option]:
    """Name -> option; the names of Megatron's command line that differ lead to the same option. Raises NotInstalled."""
    root = source.package("megatron", "core/transformer/transformer_config.py") / "core"
    enums = source.classes(source.parse(root / "transformer/enums.py"))
    known = (
        source.BASIC_TYPES | {"dtype": _DTYPES} | {name: _members(cls) for name, cls in enums.items() if _members(cls)}
    )
    fields: dict[str, Option] = {}
    other_names: dict[str, Option] = {}
    for file, wanted in CLASSES.items():
        found = source.classes(source.parse(root / file))
        for cls in wanted:
            for name, option in _fields(found[cls], known):
                (fields if name == option.name else other_names).setdefault(name, option)
    return other_names | fields


def _fields(cls: ast.ClassDef, known: dict[str, Any]) -> Iterator[tuple[str, Option]]:
    for field, below in zip(cls.body, [*cls.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or field.target.id.startswith("_"):
            continue
        try:
            kind = source.read_type(field.annotation, known)
        except source.Unreadable:
            continue  # a function or an object: no text stands for it
        try:
            default, shown = source.read_value(field.value), None
        except source.Unreadable as error:
            default, shown = None, str(error).rpartition(".")[2]
        text = source.read_text(below.value) if isinstance(below, ast.Expr) else ""
        option = Option(field.target.id, kind, default, text, family="megatron", shown_default=shown)
        yield option.name, option
        for other in _other_names(field.value):
            yield other, option


def _other_names(value: ast.AST | None) -> Iterator[str]:
    """field(..., metadata={"argparse_meta": {"arg_names": ["--norm-epsilon"]}}) -> norm_epsilon"""
    for node in ast.walk(value) if value else []:
        if isinstance(node, ast.Dict):
            for key, names in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "arg_names":
                    yield from (name.removeprefix("--").replace("-", "_") for name in source.read_value(names))


def _members(cls: ast.ClassDef) -> Any:
    names = [
        node.targets[0].id
        for node in cls.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    return Literal[tuple(names)] if names else None
