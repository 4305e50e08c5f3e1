"""The house stands: who may import whom, who may import torch and Ray, how long a file may be. Reads the code, runs
none of it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {
    "algorithms": 0, "rewards": 0, "config": 0, "observe": 0, "command": 0,
    "data": 1, "models": 1, "schedule": 1, "platform": 1, "memory": 1,
    "training": 2, "inference": 2,
    "rollout": 3, "weights": 3, "agents": 3,
    "cluster": 4,
    "bench": 5, "doctor": 5, "inspect": 5, "chaos": 5, "convert": 5, "tiny": 4, "train": 5,
}  # fmt: skip
TORCH_FREE = {"command", "config", "observe", "schedule", "data", "rewards", "doctor", "inspect", "chaos"}
RAY = {"cluster", "bench", "doctor", "train"}
MAX_LINES = 450
MAX_LINES_OF_THE_DRIVER = 100

FILES = sorted(ROOT.glob("slime/**/*.py")) + sorted(ROOT.glob("train.py"))


def room_of(file: Path) -> str | None:
    """The room of a file: the first folder under slime/, or the file itself; None for slime/__init__.py."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    if parts == ("train",):
        return "train"
    return None if parts[1] == "__init__" else parts[1]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import, wherever it stands and if only for types; relative ones are resolved."""
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


IMPORTS = {file: list(imports(file)) for file in FILES}


def places(offences: Iterator[str]) -> str:
    return "\n".join(offences)


def test_every_room_has_a_floor():
    rooms = {room for file in FILES if (room := room_of(file))}
    assert rooms <= set(FLOORS), f"say in FLOORS where these stand: {rooms - set(FLOORS)}"


def test_a_room_imports_only_from_lower_floors():
    def offences() -> Iterator[str]:
        for file in FILES:
            room = room_of(file)
            for line, module in IMPORTS[file]:
                parts = module.split(".")
                if room is None or parts[0] != "slime" or len(parts) < 2 or parts[1] not in FLOORS:
                    continue
                other = parts[1]
                if other != room and FLOORS[other] >= FLOORS[room]:
                    yield f"{file.relative_to(ROOT)}:{line} is on floor {FLOORS[room]}, {other} on {FLOORS[other]}"

    assert not (found := places(offences())), f"a room imports only from floors below:\n{found}"


@pytest.mark.parametrize(
    ("library", "may_import"), [("torch", set(FLOORS) - TORCH_FREE), ("ray", RAY)], ids=["torch", "ray"]
)
def test_heavy_libraries_stay_in_their_rooms(library, may_import):
    offences = (
        f"{file.relative_to(ROOT)}:{line}"
        for file in FILES
        for line, module in IMPORTS[file]
        if module.split(".")[0] == library and room_of(file) not in may_import
    )
    assert not (found := places(offences)), f"{library} is imported only by {', '.join(sorted(may_import))}:\n{found}"


def test_files_are_short():
    limits = {
        file: MAX_LINES_OF_THE_DRIVER if file.name == "train.py" and file.parent == ROOT else MAX_LINES
        for file in FILES
    }
    long = (
        f"{file.relative_to(ROOT)}: {lines} lines, at most {limit}"
        for file, limit in limits.items()
        if (lines := len(file.read_text().splitlines())) > limit
    )
    assert not (found := places(long)), found


def test_nothing_is_called_utils():
    named = [
        str(path.relative_to(ROOT))
        for path in ROOT.glob("slime/**/*")
        if path.stem.lower() in ("util", "utils", "helpers", "misc")
    ]
    assert named == []


def test_no_test_has_brought_training_into_this_process():
    """It patches torch, and transformers, with which models and engines are compared, would compute something else. All
    test modules that this process was given are imported by now. What needs training runs in a rank."""
    assert "slime.training" not in sys.modules
