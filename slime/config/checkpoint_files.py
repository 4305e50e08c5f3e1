"""What the files of one checkpoint say, read without torch: how far it is, and what of it is missing or broken.

A checkpoint of ours has state.json and config.json. Of one that lost the first it can still be told by the second, or
by the position in the data that was written beside it. Those of Megatron itself have neither, and are taken as weights.

Invariant: nothing that a file names is imported or called.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slime.config.checkpoint_dir import DATA, STATE, rollout_of, to_load

if TYPE_CHECKING:
    from slime.config.config import Config

UNREADABLE = (OSError, ValueError, RecursionError)  # the last where JSON is nested too deep
METADATA, FORMAT, MODEL = ".metadata", "metadata.json", "config.json"
NOT_OF_THE_WEIGHTS = frozenset(
    """
    architectures auto_map bos_token_id eos_token_id pad_token_id transformers_version use_cache dtype torch_dtype
    id2label label2id num_labels problem_type quantization_config
    """.split()
)
"""Keys of config.json in which two models may differ whose weights mean the same."""
ANOTHER = "put it back from a copy, or take another checkpoint with --ckpt-step"
OR_WEIGHTS = "put it back from a copy, take another checkpoint with --ckpt-step, or the weights alone with --finetune"
LEFTOVERS = ("token", "next_own", "handed_out")
KEYS = {
    "progress", "has_optimizer", "has_reference", "layers", "head", "layout", "mtp_layers", "distributed_optimizer",
}  # fmt: skip
COUNTS = ("rollout_id", "num_steps", "weight_version")


class Damage(NamedTuple):
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.fix}"


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint is not what was saved."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


def read_state(checkpoint: Path) -> dict[str, Any] | None:
    """state.json; None where there is none. Raises DamagedCheckpoint when it is not as it was written."""
    file = checkpoint / STATE
    if not file.exists():
        return None
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        reason = _unlike_a_state(state)
    except UNREADABLE as error:
        reason = f"can't be read ({error})"
    if reason:
        fix = f"{ANOTHER}; without this file --finetune takes the weights alone"
        raise DamagedCheckpoint(Damage(f"{file} {reason}", fix))
    return state


def _unlike_a_state(state: Any) -> str:
    """In what it differs from those that are saved; nothing where it doesn't."""
    if not isinstance(state, dict):
        return f"holds a JSON {type(state).__name__}, not an object"
    if "progress" not in state:
        return "lacks 'progress'"
    if unknown := sorted(state.keys() - KEYS):
        return f"says something of {', '.join(unknown)}, which this version of slime does not know"
    progress = state["progress"]
    if progress is None:  # weights alone
        return ""
    if not isinstance(progress, dict):
        return f"says {progress!r} of 'progress', which is no object"
    wrong = [f"'progress.{name}'" for name in COUNTS if not isinstance(progress.get(name), int)]
    wrong += ["'has_optimizer'"] * (not isinstance(state.get("has_optimizer"), bool))
    layout = state.get("layout")
    wrong += ["'layout'"] * (not (isinstance(layout, dict) and isinstance(layout.get("expert"), int)))
    return f"lacks {' and '.join(wrong)}, or has no sound value there" if wrong else ""


def trained(checkpoint: Path) -> int | None:
    """How many rollouts it has been trained on; None where it holds weights alone. Raises DamagedCheckpoint."""
    state = read_state(checkpoint)
    return None if state is None or state["progress"] is None else state["progress"]["rollout_id"] + 1


def first_rollout(config: Config) -> int:
    """How many rollouts are done when a run starts. Raises NoCheckpoint as `to_load` does, and DamagedCheckpoint."""
    if config.start_rollout_id is not None:
        return config.start_rollout_id
    found = None if config.finetune or config.debug_rollout_only else to_load(config)
    return (0 if found is None else trained(found)) or 0


def lost_state(checkpoint: Path) -> Damage | None:
    """That it is one of ours without state.json: a run would go on with its weights as if they had just been made."""
    number = rollout_of(checkpoint)
    if number is None or (checkpoint / STATE).exists():
        return None
    for witness in (checkpoint / MODEL, checkpoint.parent / DATA / f"{number}.json"):
        if witness.exists():
            what = f"{checkpoint} has lost its {STATE}, which says how far it is ({witness} tells that there was one)"
            return Damage(what, f"{ANOTHER}, or the weights alone with --finetune")
    return None


def lost_model(checkpoint: Path) -> Damage | None:
    """That it is one of ours without config.json, so that nothing tells whether a run is of the same model."""
    if (checkpoint / MODEL).exists() or not (checkpoint / STATE).exists():
        return None
    what = f"{checkpoint} has lost its {MODEL}, which says what model it is of"
    return Damage(what, "copy that of the model there which it was trained from, or put it back from a copy")


def damages(checkpoint: Path) -> Iterator[Damage]:
    """All that is wrong with its files, but for a state.json that is not there."""
    try:
        read_state(checkpoint)
    except DamagedCheckpoint as error:
        yield error.damage
    if lost := lost_model(checkpoint):
        yield lost
    elif (checkpoint / MODEL).exists():
        try:
            if not isinstance(json.loads((checkpoint / MODEL).read_text(encoding="utf-8")), dict):
                raise ValueError("it is no JSON object")
        except UNREADABLE as error:
            yield Damage(f"{checkpoint / MODEL} can't be read ({error})", ANOTHER)
    if reason := wrong_format(checkpoint):
        yield Damage(f"{checkpoint / FORMAT} {reason}", ANOTHER)
    if damaged := damaged_files(checkpoint):
        yield Damage(f"{checkpoint} is damaged: {'; '.join(damaged)}", ANOTHER)


def wrong_format(checkpoint: Path) -> str:
    """What is wrong with the file by which Megatron knows how tensors are stored; nothing where it does."""
    try:
        stated = json.loads((checkpoint / FORMAT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "is not there, so Megatron does not know how tensors are stored"
    except UNREADABLE as error:
        return f"can't be read ({error})"
    if not (isinstance(stated, dict) and isinstance(stated.get("sharded_backend"), str)):
        return "does not say how tensors are stored ('sharded_backend')"
    return ""


def of_another_model(checkpoint: Path, model: str) -> str:
    """How its config.json differs from that of a model; nothing where it doesn't, or where one can't be read."""
    try:
        saved, wanted = (json.loads((Path(path) / MODEL).read_text(encoding="utf-8")) for path in (checkpoint, model))
    except UNREADABLE:
        return ""
    both = isinstance(saved, dict) and isinstance(wanted, dict)
    return "; ".join(differences(saved, wanted)) if both else ""


def differences(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Field by field, what two config.json say of a model that its weights depend on."""
    return [
        f"{name} in its config.json is {saved.get(name)!r}, this model's is {wanted.get(name)!r}"
        for name in sorted((saved.keys() | wanted.keys()) - NOT_OF_THE_WEIGHTS)
        if saved.get(name) != wanted.get(name)
    ]


def data_files(config: Config) -> tuple[Path, Path] | None:
    """Those after which a run goes on in its prompts: of the position, and of what had been handed out. None where it
    goes on after nothing, or with no prompts. Raises as `first_rollout` does."""
    directory, first = config.load or config.save, first_rollout(config)
    of_a_file = config.load_debug_rollout_data is None and config.data_source_path is None
    if directory is None or not first or not of_a_file:
        return None
    return Path(directory, DATA, f"{first - 1}.json"), Path(directory, DATA, f"{first - 1}.buffer.json")


def lost_position(config: Config) -> Damage | None:
    """That the position in the prompts after which a run goes on can't be told, or what else it goes on with. Raises as
    `first_rollout` does."""
    by_a_file = config.load_debug_rollout_data is None and config.data_source_path is None
    if config.start_rollout_id and by_a_file and config.load is None and config.save is None:
        what = f"where the prompts go on after {config.start_rollout_id} rollouts is in no directory"
        return Damage(what, "give --load, with the checkpoints of those rollouts, or leave it out")
    files = data_files(config)
    if files is None:
        return None
    position, leftovers = files
    reason = _unlike_an_object(position, ()) if position.exists() else "is not there (a run on recordings saves none)"
    if reason:
        return Damage(f"{position} {reason}, so the position in the prompts is not known", OR_WEIGHTS)
    if leftovers.exists() and (reason := _unlike_an_object(leftovers, LEFTOVERS)):
        what = "which says what had been handed out and was not trained on"
        return Damage(f"{leftovers} {reason}, {what}", OR_WEIGHTS)
    return None


def _unlike_an_object(file: Path, keys: tuple[str, ...]) -> str:
    """Why it is no JSON object with these keys; nothing where it is."""
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        return f"can't be read ({error})"
    if not isinstance(stated, dict):
        return "holds no JSON object"
    lacking = [repr(key) for key in keys if key not in stated]
    return f"lacks {' and '.join(lacking)}" if lacking else ""


def damaged_files(checkpoint: Path) -> list[str]:
    """What of its tensors' files is missing or cut short, a few words for each file."""
    try:
        with (checkpoint / METADATA).open("rb") as file:
            parts = list(_Reader(file).load().storage_data.values())
            needed: dict[str, int] = {}
            for part in parts:
                needed[part.relative_path] = max(needed.get(part.relative_path, 0), part.offset + part.length)
    except FileNotFoundError:
        return ["there is no file .metadata"]
    except Exception as error:  # pickle raises whatever the bytes that it takes for instructions lead to
        return [f"its file .metadata can't be read ({error})"]
    problems = []
    for name, size in sorted(needed.items()):
        file = checkpoint / name
        if not file.is_file():
            problems.append(f"there is no file {name}")
        elif file.stat().st_size < size:
            problems.append(f"{name} has {file.stat().st_size} bytes of {size}")
    return problems


class _Anything:
    """In place of every class and function that a pickle names: takes what it is given, and keeps named fields."""

    def __new__(cls, *arguments: Any, **fields: Any) -> _Anything:
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass


class _Reader(pickle.Unpickler):
    """Of PyTorch's metadata, which is needed only for the places of tensors in files: plain fields of its objects."""

    def find_class(self, module: str, name: str) -> type[_Anything]:
        return _Anything
