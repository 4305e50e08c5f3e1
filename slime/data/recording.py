"""A rollout in a file: JSON lines, one group of samples each, to the last bit. Nothing in it is ever executed.

The first line says what the file is and how many groups follow. Floats are written so that they read back as the same
number, NumPy arrays as {"npy": base64 of a .npy file}. What no JSON stands for is an error that names the sample:
nothing is left out in silence.
"""

from __future__ import annotations

import base64
import io
import json
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from slime.data.errors import DataError
from slime.data.sample import Sample

FORMAT = {"format": "slime rollout", "version": 2}
Group = Sequence[Sample | Sequence[Sample]]  # of one prompt; a list where a sample fanned out into several


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file of JSON to write, which has its name only when all of it is written. Raises DataError when it can't be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Half a surrogate pair, which JSON may say and UTF-8 can't, becomes what stands for it in JSON.
            with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
                yield file
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"can't write {path}: {error.strerror or error}. What was saved before is as it was, and a run goes on from"
            " there with --load"
        ) from error


def write_rollout(path: str | Path, groups: Sequence[Group]) -> None:
    """Whole, or not at all. Raises DataError for a sample that holds what can't be written."""
    with replacing(Path(path)) as file:
        file.write(json.dumps(FORMAT | {"groups": len(groups)}) + "\n")
        for group in groups:
            members = (_text(s) if isinstance(s, Sample) else f"[{', '.join(map(_text, s))}]" for s in group)
            file.write(f"[{', '.join(members)}]\n")


def read_rollout(path: str | Path) -> list[list[Sample | list[Sample]]]:
    """The groups of `write_rollout`. Raises DataError, with the line, for a file that is something else or not whole,
    and for a sample that contradicts itself."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: there is no such recorded rollout")
    with path.open(encoding="utf-8") as file:
        count = _at(path, 1, _num_groups, file.readline())
        groups = [_at(path, number, _checked_group, line) for number, line in enumerate(file, 2)]
    if len(groups) != count:
        raise DataError(f"{path}: it holds {len(groups)} groups, where its first line says {count}")
    return groups


def _at(path: Path, number: int, read: Callable[[str], Any], line: str) -> Any:
    try:
        return read(line)
    except (ValueError, TypeError, LookupError, AttributeError, EOFError, RecursionError) as error:
        raise DataError(f"{path}:{number}: {error}") from error


def _num_groups(line: str) -> int:
    head = loads(line) if line else None
    count = head.get("groups") if isinstance(head, dict) else None
    if not isinstance(count, int) or head != FORMAT | {"groups": count}:
        raise ValueError(f'not a recorded rollout, whose first line is {json.dumps(FORMAT)[:-1]}, "groups": ...}}')
    return count


def _checked_group(line: str) -> list[Sample | list[Sample]]:
    group = group_from(loads(line))
    for member in group:
        for sample in [member] if isinstance(member, Sample) else member:
            sample.check()
    return group


def dumps(value: Any) -> str:
    """JSON on one line, also of arrays. Raises TypeError for what no JSON stands for."""
    return json.dumps(value, ensure_ascii=False, default=_encoded)


def loads(text: str) -> Any:
    """What `dumps` made a text of. Raises ValueError for a text that it did not make."""
    return json.loads(text, object_hook=_decoded)


def _text(sample: Sample) -> str:
    try:
        return dumps(sample.to_dict())
    except TypeError as error:
        raise DataError(f"{sample.name} can't be recorded: {error}") from error


def group_to(group: Group) -> list[Any]:
    """A group as what `dumps` can write; lists and dicts are the samples' own, no copies."""
    return [member.to_dict() if isinstance(member, Sample) else group_to(member) for member in group]


def group_from(values: list[Any]) -> list[Sample | list[Sample]]:
    """What `group_to` made something else of. Raises ValueError for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"a group is a list of samples, not {json.dumps(values)[:80]}")
    return [Sample.from_dict(member) if isinstance(member, dict) else group_from(member) for member in values]


def _encoded(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"npy": base64.b64encode(file.getvalue()).decode()}
    raise TypeError(f"no JSON stands for a {type(value).__name__}")


def _decoded(values: dict[str, Any]) -> Any:
    if values.keys() == {"npy"}:
        return np.load(io.BytesIO(base64.b64decode(values["npy"])), allow_pickle=False)
    return values
