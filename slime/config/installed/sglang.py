"""The options of the installed SGLang server: fields of the classes in sglang/srt/arg_groups/fields, annotated
`A[type, help or Arg(...)]`, and the few that server_args.py adds to the parser by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from slime.config.installed import source
from slime.config.option import REQUIRED, Option
from slime.config.section import as_json

RESERVED = {
    "model_path": "--hf-checkpoint",
    "tp_size": "--rollout-num-gpus-per-engine",
    "device": "--device",
    "host": "the placement of the engines",
    "port": "the placement of the engines",
    "nnodes": "the placement of the engines",
    "node_rank": "the placement of the engines",
    "dist_init_addr": "the placement of the engines",
    "base_gpu_id": "the placement of the engines",
    "gpu_id_step": "the placement of the engines",
    "api_key": "the token that each run makes for itself",
    "config": "--config",
}
_JSON_PARSERS = ("json.loads", "json_list_type")


def read() -> dict[str, Option]:
    """Name -> option; aliases lead to the same option. Raises NotInstalled."""
    root = source.package("sglang", "srt/arg_groups/fields") / "srt"
    known = source.constants(source.parse(root / "arg_groups/choices.py"))
    options: dict[str, Option] = {}
    hidden: dict[str, ast.AnnAssign] = {}
    for file in sorted((root / "arg_groups/fields").glob("*.py")):
        for cls in source.classes(source.parse(file)).values():
            for field in (node for node in cls.body if isinstance(node, ast.AnnAssign)):
                for name, option in _field(field, known):
                    options[name] = option
                hidden[field.target.id] = field
    for name, option in _added_by_hand(root / "server_args.py", hidden):
        options.setdefault(name, option)
    return options


def _field(field: ast.AnnAssign, known: dict[str, Any]) -> Iterator[tuple[str, Option]]:
    if not (isinstance(field.annotation, ast.Subscript) and ast.unparse(field.annotation.value) == "A"):
        return
    kind, note = field.annotation.slice.elts[:2]
    about = {word.arg: word.value for word in note.keywords} if isinstance(note, ast.Call) else {"help": note}
    if "no_cli" in about:
        return
    name = _name(source.read_value(about["cli_name"])) if "cli_name" in about else field.target.id
    parser = ast.unparse(about["type_parser"]) if "type_parser" in about else ""
    default, shown = _default(field)
    option = Option(
        name,
        _type(kind, about, parser, known),
        default,
        source.read_text(about.get("help")),
        family="sglang",
        shown_default=shown,
        json=parser in _JSON_PARSERS,
    )
    yield name, option
    for alias in source.read_value(about["aliases"]) if "aliases" in about else []:
        yield _name(alias), option


def _type(kind: ast.AST, about: dict[str, ast.AST], parser: str, known: dict[str, Any]) -> Any:
    try:
        read = source.read_type(kind)
    except source.Unreadable:
        read = str  # a class of SGLang's own: its own parser reads the text
    if parser in _JSON_PARSERS:
        if read == str | None:  # annotated as the text, parsed into an object all the same
            read = dict[str, Any] | None
        return Annotated[read, BeforeValidator(as_json)]
    if parser == "human_readable_int":
        return source.ReadableInt | None
    return source.limited(read, about.get("choices"), known)


def _default(field: ast.AnnAssign | None) -> tuple[Any, str | None]:
    if field is None:
        return None, None
    if field.value is None:
        return REQUIRED, None
    try:
        return source.read_value(field.value), None
    except source.Unreadable as error:
        return None, str(error)


def _added_by_hand(file: Path, fields: dict[str, ast.AnnAssign]) -> Iterator[tuple[str, Option]]:
    for call in (node for node in ast.walk(source.parse(file)) if isinstance(node, ast.Call)):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
            continue
        words = {word.arg: word.value for word in call.keywords}
        action = ast.unparse(words["action"]) if "action" in words else ""
        kind = (
            bool
            if "StoreTrue" in action or "store_true" in action
            else source.limited(str | None, words.get("choices"))
        )
        name = _name(source.read_value(call.args[0]))
        try:
            default, shown = source.read_value(words["default"]), None
        except (KeyError, source.Unreadable):  # the field's own, by a call
            default, shown = _default(fields.get(name))
        yield (
            name,
            Option(name, kind, default, source.read_text(words.get("help")), family="sglang", shown_default=shown),
        )


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
