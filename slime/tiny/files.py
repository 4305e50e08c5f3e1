"""The directory of a tiny experiment: model/, reward-model/, train.jsonl, heldout.jsonl, sft.jsonl.

Invariant: the directory appears complete or not at all (it is written beside its place and renamed).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from slime.tiny.checkpoint import write_checkpoint
from slime.tiny.tasks import TASKS, draw


@dataclass(frozen=True, slots=True)
class Tiny:
    """Where things are below `root`."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def reward_model(self) -> Path:
        """Gives a text one number, by random weights: what is learnt from it is to please it."""
        return self.root / "reward-model"

    @property
    def train(self) -> Path:
        """Lines of {"prompt": [user message], "label": answer}."""
        return self.root / "train.jsonl"

    @property
    def heldout(self) -> Path:
        """As `train`, of prompts that are in no other file."""
        return self.root / "heldout.jsonl"

    @property
    def sft(self) -> Path:
        """Lines of {"messages": [user message, assistant message]}; of `tool`, the calculator's turn and one more."""
        return self.root / "sft.jsonl"


def make_tiny(
    root: str | Path,
    task: str = "col",
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_heldout: int = 400,
    num_demos: int = 16384,
    moe: bool = False,
    num_layers: int = 2,
    width: int = 1,
) -> Tiny:
    """Makes the directory `root`; raises FileExistsError when there is something in it already.

    16384 demonstrations make the 57,600 samples of 900 steps in 3.5 epochs. The errors in them are random, and a model
    of this size can't learn them by heart in so few passes, so repeating the file does as well as fresh demonstrations.
    """
    root = Path(root)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise FileExistsError(f"{root} already exists: remove it, or choose another --output")
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = Tiny(Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent)))
    try:
        write_checkpoint(partial.model, moe=moe, num_layers=num_layers, width=width, seed=seed)
        write_checkpoint(partial.reward_model, seed=seed + 1, scores=True)
        write_lines(partial.train, questions(task, num_train, f"{seed}/train", held_out=False))
        write_lines(partial.heldout, questions(task, num_heldout, f"{seed}/heldout", held_out=True))
        write_lines(partial.sft, demonstrations(task, num_demos, f"{seed}/sft"))
        os.chmod(partial.root, 0o755)  # mkdtemp's is 0o700
        os.replace(partial.root, root)
    except BaseException:
        shutil.rmtree(partial.root, ignore_errors=True)
        raise
    return Tiny(root)


def questions(task: str, count: int, seed: str, *, held_out: bool) -> Iterable[dict[str, Any]]:
    rng = random.Random(seed)
    for _ in range(count):
        prompt, answer = draw(TASKS[task], rng, held_out=held_out)
        yield {"prompt": [{"role": "user", "content": prompt}], "label": answer}


def demonstrations(task: str, count: int, seed: str) -> Iterable[dict[str, Any]]:
    rng = random.Random(seed)
    for _ in range(count):
        prompt, answer = draw(TASKS[task], rng, held_out=False)
        said = TASKS[task].demonstration(prompt, answer, rng)
        turns = zip(cycle(("assistant", "tool")), [said] if isinstance(said, str) else said)
        messages = [{"role": role, "content": content} for role, content in (("user", prompt), *turns)]
        yield {"messages": messages}


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
