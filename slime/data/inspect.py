"""Whether the data of a run can be used, before anything is started: tokenizer, chat template and prompt files."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, get_args

from slime.config.disk import TOKENIZER_FILES
from slime.config.sections.rollout import RmType
from slime.data.encode import PromptEncoder
from slime.data.errors import DataError
from slime.data.eval_sets import eval_sets
from slime.data.prompts import Keys, Prompt, PromptSet
from slime.data.template import compile_templates
from slime.data.tokenizer import CONFIG, Tokenizer, load_templates, read_json

PIECE = 256  # prompts that are encoded at a time, until one is found that fits


def unusable_data(config: Any) -> list[tuple[str, str]]:
    """(option, what is wrong), one for the tokenizer or the template, and one for each set of prompt files; the first
    unsound row of a set stands for all of its rows."""
    problems = unusable_tokenizer(config) or unusable_template(config)
    graded_by_us = config.custom_rm_path is None and config.loss_type != "sft_loss"
    check = _check_rm_type if graded_by_us else _check_nothing
    encoder = None if problems else _encoder(config)
    if config.prompt_data and config.data_source_path is None:
        keys = Keys(config.input_key, config.label_key, config.metadata_key, config.tool_key)
        try:
            prompts = PromptSet(config.prompt_data, keys, skip_malformed=config.skip_malformed_prompts, check=check)
            _some_fit(prompts, encoder, PromptEncoder.limit_option, config.rollout_max_prompt_len)
        except DataError as error:
            problems.append(("--prompt-data", str(error)))
    try:
        sets = eval_sets(config) if config.eval_interval is not None else []
    except DataError as error:
        return [*problems, ("--eval-prompt-data or --eval-config", str(error))]
    for one in sets:
        try:
            keys = Keys(one.input_key, one.label_key, one.metadata_key, one.tool_key)
            _some_fit(PromptSet(one.path, keys, check=check), encoder, "max_prompt_len", one.max_prompt_len)
        except DataError as error:
            problems.append((f"eval set {one.name}", str(error)))
    return problems


def _encoder(config: Any) -> PromptEncoder | None:
    """Of prompts for generation, where it takes no seconds to have one."""
    if config.loss_type == "sft_loss" or not (Path(config.hf_checkpoint) / "tokenizer.json").exists():
        return None
    return PromptEncoder.from_config(config, Tokenizer.load(config.hf_checkpoint))


def _some_fit(prompts: PromptSet, encoder: PromptEncoder | None, option: str, limit: int | None) -> None:
    """Raises DataError when all prompts are longer than the limit. Looks no further than the first that is not."""
    if encoder is None:
        return
    if limit is None:
        encoder.encode([prompts[0]])
        return
    lengths: list[int] = []
    for first in range(0, len(prompts), PIECE):
        piece = [prompts[i] for i in range(first, min(first + PIECE, len(prompts)))]
        lengths += [len(encoded.tokens) for encoded in encoder.encode(piece)]
        if min(lengths) <= limit:
            return
    what = f"all {len(lengths)} prompts are longer than {option} {limit}"
    raise DataError(f"{what}; the shortest has {min(lengths)} tokens")


def _check_rm_type(prompt: Prompt) -> None:
    """A row may name its own grader, in its metadata. Raises DataError for one that there is not."""
    rm_type = prompt.metadata.get("rm_type")
    if rm_type is not None and rm_type not in get_args(RmType):
        near = difflib.get_close_matches(str(rm_type), get_args(RmType), n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(get_args(RmType))}"
        raise DataError(f"{prompt.where}: its metadata asks for the rm_type {rm_type!r}; {fix}")


def _check_nothing(prompt: Prompt) -> None:
    pass


def unusable_tokenizer(config: Any) -> list[tuple[str, str]]:
    checkpoint = Path(config.hf_checkpoint)
    if (checkpoint / "tokenizer.json").exists():  # older formats take transformers to read, and seconds
        try:
            Tokenizer.load(checkpoint)
        except DataError as error:
            return [("--hf-checkpoint", str(error))]
    return []


def unusable_template(config: Any) -> list[tuple[str, str]]:
    """What is wrong with the chat template, where one is needed and the tokenizer is there that would hold it."""
    trains_on_messages = config.loss_type == "sft_loss" and config.data_source_path is None
    checkpoint = Path(config.hf_checkpoint)
    if not any((checkpoint / name).exists() for name in TOKENIZER_FILES):
        return []
    if not (config.apply_chat_template or trains_on_messages):
        return []
    try:
        compile_templates(load_templates(checkpoint, read_json(checkpoint / CONFIG)))
    except DataError as error:
        option = "--apply-chat-template" if config.apply_chat_template else "--loss-type sft_loss"
        return [(option, f"{checkpoint}: {error}")]
    return []
