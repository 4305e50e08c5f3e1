"""The files that options name: whether they are there, and whether model and options fit each other.

Invariant: a file is opened only as far as needed to say that it is what it should be; of weights, only the headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slime.config import architecture, checkout, checkpoint_dir, group_rules, places, recordings, starts, weights
from slime.config.architecture import Architecture
from slime.config.checkout import CHECKOUT
from slime.config.config import Config
from slime.config.errors import Problem
from slime.config.figures import Misstated
from slime.config.sections import ModelArgs

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
NEVER_TIED_BY_SGLANG = {"qwen3_moe", "glm4_moe"}  # its models/qwen3_moe.py and glm4_moe.py don't read the setting
PROMPT_FILES = (".jsonl", ".parquet")
STEP_OF = {"ref_load": "ref_ckpt_step", "opd_teacher_load": "opd_teacher_ckpt_step"}
MADE_BY = {
    "build/tiny/tool/cold-start": "python train.py --config configs/tiny-tool-sft.yaml",
    "build/tiny/tool": "python -m slime.tiny --task tool --output build/tiny/tool",
    "build/tiny/col": "bash scripts/quickstart.sh",
}
"""What configs/tiny-*.yaml name -> what makes it; the first that fits counts."""
NO_ORGANISATIONS = ("models", "checkpoints", "data", "build", "out", "runs")  # directories, as they are usually called
SHOWN = 5  # tensors in a message; a wrong checkpoint can have tens of thousands


@dataclass
class Findings:
    problems: list[Problem] = field(default_factory=list)
    lacking: list[Problem] = field(default_factory=list)  # what a start needs and a look at the plan does not
    notes: list[str] = field(default_factory=list)  # what is done, and may not be meant
    model: Architecture | None = None


def look(config: Config, unsound: set[str]) -> Findings:
    """What the files of a configuration's sound options say."""
    found = Findings()
    trains = not config.debug_rollout_only
    if "hf_checkpoint" not in unsound:
        found.model = _checkpoint(found, "--hf-checkpoint", Path(config.hf_checkpoint), tokenizer=True, trained=trains)
    for option, step in STEP_OF.items():
        directory = getattr(config, option)
        if directory is not None and not unsound & {option, step}:
            _weights(found, option, directory, getattr(config, step), config, trained=trains)
    critic = config.critic_load
    if critic not in (None, config.hf_checkpoint) and "critic_load" not in unsound and checkpoint_dir.is_model(critic):
        _checkpoint(found, "--critic-load", Path(critic), tokenizer=False, trained=trains, to_value=True)
    if not unsound & {"load", "ckpt_step", "ref_load", "critic_load", "advantage_estimator"}:
        missing = list(starts.problems(config, unsound))
        found.problems += missing
        found.notes += [] if missing else starts.notes(config)
    if found.model:
        found.problems += _stated_differently(config, found.model)
        found.problems += _indivisible(config, found.model, unsound)
        found.problems += _tied_in_vain(config, found.model)
        found.problems += _not_by_sequence(config, found.model, unsound)
        found.problems += _unknown_stops(config, found.model, unsound)
        if config.use_routing_replay or config.use_rollout_routing_replay:
            found.problems += _replayed_in_vain(config, found.model)
        if config.enable_mtp_training and not found.model.get("mtp_num_layers"):
            what = f"{config.hf_checkpoint}/config.json has no such layers (num_nextn_predict_layers)"
            found.problems.append(Problem("--enable-mtp-training", what, "leave it out"))
    prompts = [("prompt_data", path) for path in config.prompt_data]
    prompts += [("eval_prompt_data", path) for path in config.eval_prompt_data[1::2]]
    for option, path in prompts:
        if option not in unsound:
            found.problems += _prompt_file(_flag(option), path)
    found.problems += group_rules.look(config, unsound)
    found.problems += places.look(config, unsound)
    found.problems += recordings.look(config, unsound)
    question = config.rm_judge_prompt
    if question is not None and "rm_judge_prompt" not in unsound and not Path(question).is_file():
        found.problems.append(Problem("--rm-judge-prompt", f"there is no file {question}", "name a text file"))
    if config.eval_config is not None and "eval_config" not in unsound and not Path(config.eval_config).is_file():
        found.problems.append(Problem("--eval-config", f"there is no file {config.eval_config}", "name a YAML file"))
    return found


def _weights(found: Findings, option: str, directory: str, step: int | None, config: Config, *, trained: bool) -> None:
    """Of a model that only scores: a Hugging Face directory, or one of checkpoints."""
    if step is None and (checkpoint_dir.is_model(directory) or checkpoint_dir.find(directory) is None):
        if directory != config.hf_checkpoint:
            _checkpoint(found, _flag(option), Path(directory), tokenizer=False, trained=trained)
        return
    try:
        checkpoint = checkpoint_dir.find(directory, step)
    except checkpoint_dir.NoCheckpoint as error:
        found.problems.append(Problem(_flag(STEP_OF[option]), str(error), "name one that is there"))
        return
    found.problems += starts.damages(_flag(option), checkpoint)
    if step is None:
        found.notes += starts.marker_notes(_flag(option), directory, checkpoint)


def _checkpoint(
    found: Findings, option: str, directory: Path, *, tokenizer: bool, trained: bool, to_value: bool = False
) -> Architecture | None:
    """The architecture of a checkpoint; what is wrong with it is added to `found`. `to_value`: it is of a critic."""
    if directory.is_file():
        found.problems.append(Problem(option, f"{directory} is a file", f"name the directory: {directory.parent}"))
        return None
    if not directory.is_dir():
        fix = _advice(directory) or _download(directory)
        fix = fix or "name a directory with config.json, safetensors and tokenizer"
        found.problems.append(Problem(option, f"there is no directory {directory}", fix))
        return None
    try:
        model = architecture.read(directory)
    except Misstated as error:
        fix = "correct it, or download the model again"
        found.problems.append(Problem(option, f"{directory}/config.json: {error}", fix))
        return None
    except ValueError as error:
        fix = "name the directory that holds config.json"
        found.problems.append(Problem(option, f"{directory} is not a Hugging Face model: {error}", fix))
        return None
    lacks = list(weights.lacking(directory))
    if model.model_type in architecture.trainable():
        if not lacks and (unsound := list(weights.unsound(directory, model, to_value=to_value))):
            found.problems.append(_unsound_weights(option, directory, unsound))
        elif not lacks and to_value and (file := weights.biased_head(directory)):
            what = f"{weights.BIAS} in {directory / file} is not zero, and the head of a critic has no bias"
            fix = "set it to 0: all values are then off by the same number, which the critic learns"
            found.problems.append(Problem(option, what, fix))
    elif trained:
        what = f"{directory} has the model_type {model.model_type!r}, which cannot be trained here"
        found.problems.append(Problem(option, what, f"those that can: {', '.join(architecture.trainable())}"))
    if tokenizer and not any((directory / name).exists() for name in TOKENIZER_FILES):
        lacks.append(f"{directory} has no tokenizer ({', '.join(TOKENIZER_FILES[:2])})")
    found.lacking += [Problem(option, lack, "download the whole model") for lack in lacks]
    return model


def _unsound_weights(option: str, directory: Path, unsound: list[str]) -> Problem:
    shown = [*unsound[:SHOWN], f"and {len(unsound) - SHOWN} more"] if len(unsound) > SHOWN else unsound
    what = f"the weights in {directory} cannot be used: {'; '.join(shown)}"
    return Problem(option, what, "download the model again; config.json and weights must belong together")


def _stated_differently(config: Config, model: Architecture) -> Iterator[Problem]:
    """What MODEL_ARGS of a script say otherwise than config.json, in options of ours or of Megatron's."""
    stated = {name: value for name in ModelArgs.model_fields if (value := getattr(config, name)) is not None}
    model_name = stated.pop("model_name", None)
    kinds = [model.model_type, *model.classes]
    if model_name is not None and _kind(model_name) not in map(_kind, kinds):
        yield Problem(
            "--model-name", f"states {model_name}, but config.json says {' and '.join(kinds)}", "leave it out"
        )
    stated |= {name: value for name, value in config.megatron.items() if name in model}
    for name, value, actual in architecture.differences(stated, model):
        what = f"states {_short(value)}, but config.json says {_short(actual)}"
        yield Problem(_flag(name), what, "leave it out: config.json is what counts")


def _indivisible(c: Config, model: Architecture, unsound: set[str]) -> Iterator[Problem]:
    """Parallel sizes that the model cannot be divided by."""
    uneven_stages = {
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_model_parallel_layout",
    }
    divided = {
        "tensor_model_parallel_size": ("attention heads", model["num_attention_heads"]),
        "pipeline_model_parallel_size": ("layers", model["num_layers"]),
        "expert_model_parallel_size": ("experts", model.get("num_experts", 0)),
        "rollout_num_gpus_per_engine": ("attention heads", model["num_attention_heads"]),
    }
    virtual = c.megatron.get("virtual_pipeline_model_parallel_size")
    if uneven_stages & set(c.megatron):
        del divided["pipeline_model_parallel_size"]
    for option, (what, count) in divided.items():
        size = getattr(c, option)
        if option in unsound or size == 1:
            continue
        if count == 0:
            yield Problem(_flag(option), f"is {size}, but the model has no {what}", "leave it out")
        elif count % size:
            yield Problem(_flag(option), f"{size} does not divide the model's {count} {what}", "choose a divisor")
        elif option == "pipeline_model_parallel_size" and virtual and count // size % virtual:
            what = f"{virtual} does not divide the number of layers in a pipeline stage, {count // size}"
            yield Problem("--virtual-pipeline-model-parallel-size", what, "choose a divisor, or leave it out")


def _replayed_in_vain(c: Config, model: Architecture) -> Iterator[Problem]:
    if "num_experts" not in model:
        option = "use_rollout_routing_replay" if c.use_rollout_routing_replay else "use_routing_replay"
        yield Problem(_flag(option), "the model has no experts that tokens are routed to", "leave it out")


def _tied_in_vain(c: Config, model: Architecture) -> Iterator[Problem]:
    """SGLang would give such a model an output layer of zeros, and sample every token with the same probability."""
    tied = not model["untie_embeddings_and_output_weights"]
    if tied and model.model_type in NEVER_TIED_BY_SGLANG and c.has_engines:
        what = f"{c.hf_checkpoint}/config.json ties the output layer to the embedding, which SGLang ignores for"
        fix = "save the model with an lm_head.weight of its own and tie_word_embeddings false"
        yield Problem("--hf-checkpoint", f"{what} {model.model_type}", fix)


def _not_by_sequence(c: Config, model: Architecture, unsound: set[str]) -> Iterator[Problem]:
    """Tensor parallelism that Megatron refuses in the first step, or trains latent attention wrongly by."""
    size = c.tensor_model_parallel_size
    is_divided = size > 1 and not (c.sequence_parallel or c.debug_rollout_only)
    if not is_divided or unsound & {"tensor_model_parallel_size", "sequence_parallel", "expert_model_parallel_size"}:
        return
    kinds = {
        "a mixture of experts": "num_experts" in model and c.expert_model_parallel_size == 1,  # else a rule says it
        "latent attention": "kv_lora_rank" in model,
    }
    for kind in [kind for kind, is_there in kinds.items() if is_there][:1]:
        what = f"{size} needs sequence parallelism to train {kind}"
        yield Problem("--tensor-model-parallel-size", what, "add --sequence-parallel")


def _unknown_stops(c: Config, model: Architecture, unsound: set[str]) -> Iterator[Problem]:
    vocabulary = model["vocab_size"]
    unknown = [i for i in c.rollout_stop_token_ids if not 0 <= i < vocabulary]
    if unknown and "rollout_stop_token_ids" not in unsound:
        what = f"{', '.join(map(str, unknown))}: the vocabulary has the ids 0 to {vocabulary - 1}"
        yield Problem("--rollout-stop-token-ids", what, "name ids of the model's tokens")


def _prompt_file(option: str, path: str) -> Iterator[Problem]:
    name, _, lines = path.partition("@[")
    file = Path(name)
    if lines and not re.fullmatch(r"-?\d*:-?\d*\]", lines):
        yield Problem(option, f"{path!r} does not end in a slice of lines", "file@[first:end]; both may be left out")
    if file.is_dir():
        yield Problem(option, f"{file} is a directory", f"name a file in it, {' or '.join(PROMPT_FILES)}")
    elif file.exists() and not file.is_file():
        yield Problem(option, f"{file} is no file that can be read twice", "write its lines into one, and name that")
    elif not file.is_file():
        fix = "wildcards are not resolved: name each file" if set(str(file)) & set("*?") else _advice(file)
        yield Problem(option, f"there is no file {file}", fix or "relative paths start where the command runs")
    elif file.stat().st_size == 0:
        yield Problem(option, f"{file} is empty", "one prompt a line, as a JSON object")
    elif file.suffix not in PROMPT_FILES:
        yield Problem(option, f"{file} is neither {' nor '.join(PROMPT_FILES)}", "convert it; one prompt a line or row")


def _advice(path: Path) -> str:
    """How to come by what is not there: where it is instead, or what makes it. Empty: unknown."""
    if not path.is_absolute() and (CHECKOUT / path).exists():
        return f"it is in {CHECKOUT}, and relative paths start where the command runs: start it there"
    for made, command in MADE_BY.items():
        if path.is_relative_to(made) and checkout.lacking():
            return f"`{command}` makes it, in a checkout of slime's repository; this installation is none"
        if path.is_relative_to(made):
            where = "" if Path.cwd() == CHECKOUT else f" in {CHECKOUT}: start both there"
            return f"`{command}` makes it{where}"
    return ""


def _download(directory: Path) -> str:
    """How to, where a path looks like the name of a model on the Hugging Face Hub, or like a place for one."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(directory)):
        return ""
    name = f"ORGANISATION/{directory.name}" if directory.parts[0] in NO_ORGANISATIONS else directory
    return f"if it is to be a model of the Hugging Face Hub: hf download {name} --local-dir {directory}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _kind(name: str) -> str:
    """qwen3_moe, Qwen3MoE and Qwen3MoeForCausalLM are the same kind of model."""
    return re.sub(r"[\W_]|forcausallm", "", name.lower())


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-15:]}"
