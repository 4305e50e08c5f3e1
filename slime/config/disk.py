"""The files that options name: whether they are there, and whether model and options fit each other.

Invariant: a file is opened only as far as needed to say that it is what it should be; nothing is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from slime.config import architecture
from slime.config.architecture import Architecture
from slime.config.config import Config
from slime.config.errors import Problem
from slime.config.sections import ModelArgs

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
PROMPT_FILES = (".jsonl", ".parquet")


def check_files(
    config: Config, unsound: set[str], *, weights: bool
) -> tuple[list[Problem], list[str], Architecture | None]:
    """Problems and notes about the files that options name, and the model's architecture.

    Without `weights` a checkpoint may consist of its config.json alone; what it lacks is then only noted.
    """
    problems: list[Problem] = []
    lacks: list[Problem] = []
    model = None
    for option in ("hf_checkpoint", "ref_load"):
        directory = getattr(config, option)
        if option in unsound or directory is None or (option == "ref_load" and directory == config.hf_checkpoint):
            continue
        found, lacking, read = _checkpoint(
            "--" + option.replace("_", "-"), Path(directory), tokenizer=option == "hf_checkpoint"
        )
        problems += found
        lacks += lacking
        if option == "hf_checkpoint":
            model = read
    if model:
        problems += _stated_architecture(config, model)
        problems += list(_model_divides(config, model, unsound))
    if "prompt_data" not in unsound:
        problems += [problem for path in config.prompt_data for problem in _prompt_file("--prompt-data", path)]
    if not {"eval_prompt_data", "eval_interval"} & unsound:
        problems += [p for path in config.eval_prompt_data[1::2] for p in _prompt_file("--eval-prompt-data", path)]
    if weights:
        return problems + lacks, [], model
    return problems, [f"{lack.where}: {lack.what}; a run could not start." for lack in lacks], model


def _checkpoint(
    option: str, directory: Path, *, tokenizer: bool
) -> tuple[list[Problem], list[Problem], Architecture | None]:
    """(what is wrong, what is merely not there yet, the architecture)"""
    if not directory.is_dir():
        looks_like_a_name = re.fullmatch(r"[\w.-]+/[\w.-]+", str(directory)) is not None
        fix = (
            f"download it first, e.g.: hf download {directory} --local-dir {directory.name}"
            if looks_like_a_name
            else "name a directory with config.json, safetensors and tokenizer"
        )
        return [Problem(option, f"there is no directory {directory}", fix)], [], None
    try:
        model = architecture.read(directory)
    except ValueError as error:
        return (
            [
                Problem(
                    option,
                    f"{directory} is not a Hugging Face model: {error}",
                    "name the directory that holds config.json",
                )
            ],
            [],
            None,
        )
    lacking = [Problem(option, problem, "download the whole model") for problem in _missing_weights(directory)]
    if tokenizer and not any((directory / name).exists() for name in TOKENIZER_FILES):
        lacking.append(
            Problem(
                option, f"{directory} has no tokenizer ({', '.join(TOKENIZER_FILES[:2])})", "download the whole model"
            )
        )
    return [], lacking, model


def _missing_weights(directory: Path) -> Iterator[str]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        if not any(directory.glob("*.safetensors")):
            yield f"{directory} has no weights (*.safetensors)"
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        yield f"{index} is not an index of weights: {error!r}"
        return
    if gone := sorted(shard for shard in shards if not (directory / shard).exists()):
        yield f"{directory} has {len(shards) - len(gone)} of {len(shards)} files of weights; {gone[0]} is missing"


def _stated_architecture(config: Config, model: Architecture) -> list[Problem]:
    stated = {name: value for name in ModelArgs.model_fields if (value := getattr(config, name)) is not None}
    return [
        Problem(
            "--" + name.replace("_", "-"),
            f"states {value}, but config.json says {actual}",
            "leave it out: config.json is what counts",
        )
        for name, value, actual in architecture.differences(stated, model)
    ]


def _model_divides(c: Config, model: Architecture, unsound: set[str]) -> Iterator[Problem]:
    """Parallel sizes that the model cannot be divided by."""
    tp, pp, ep, engine = (
        c.tensor_model_parallel_size, c.pipeline_model_parallel_size, c.expert_model_parallel_size, c.rollout_num_gpus_per_engine,
    )  # fmt: skip
    uneven = {
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_model_parallel_layout",
    }
    for option, size, what, count in [
        ("tensor_model_parallel_size", tp, "attention heads", model["num_attention_heads"]),
        ("pipeline_model_parallel_size", 1 if uneven & set(c.megatron) else pp, "layers", model["num_layers"]),
        ("expert_model_parallel_size", ep, "experts", model.get("num_experts", 0)),
        ("rollout_num_gpus_per_engine", engine, "attention heads", model["num_attention_heads"]),
    ]:
        if option in unsound or size == 1:
            continue
        flag = "--" + option.replace("_", "-")
        if not count:
            yield Problem(flag, f"is {size}, but the model has no {what}", "leave it out")
        elif count % size:
            yield Problem(flag, f"{size} does not divide the model's {count} {what}", "choose a divisor")


def _prompt_file(option: str, path: str) -> Iterator[Problem]:
    plain, _, slice_ = path.partition("@[")
    file = Path(plain)
    if slice_ and not re.fullmatch(r"-?\d*:-?\d*\]", slice_):
        yield Problem(option, f"{path!r} does not end in a slice of lines", "file@[first:end], either may be left out")
    if not file.is_file():
        yield Problem(option, f"there is no file {file}", f"paths are relative to {Path.cwd()}")
    elif file.stat().st_size == 0:
        yield Problem(option, f"{file} is empty", "one JSON object a line, with the prompt")
    elif file.suffix not in PROMPT_FILES:
        yield Problem(option, f"{file} is neither {' nor '.join(PROMPT_FILES)}", "convert it, one prompt a line")
