"""Numbers: a list of numbers in one piece of memory, as the trainer reads them. What a finished sample's token fields
are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

TOKEN, LOG_PROB, MASK = "i", "d", "f"  # type codes; 'd' keeps what the engine said to the last bit


class Numbers(array):
    """Reads, appends and compares like a list of int or float. Slices, multiples and sums with lists are lists; copies
    are Numbers.

    `Numbers("i", [1, 2])`, with a type code of the array module.
    """

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return self.tolist() == other if isinstance(other, list) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found.tolist() if isinstance(index, slice) else found

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Any]) -> list[Any]:
        return [*other, *self]

    def __mul__(self, times: int) -> list[Any]:
        return self.tolist() * times

    __rmul__ = __mul__

    def __copy__(self) -> Numbers:
        return self.__class__(self.typecode, self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Numbers:
        return self.__copy__()

    def __iadd__(self, other: Iterable[Any]) -> Numbers:
        self.extend(self.__class__(self.typecode, other))
        return self


def as_array(values: Sequence[Any], dtype: Any) -> np.ndarray:
    """An array of the numbers: of arrays, Numbers and bytes a view, of their own type; of a list an array of
    `dtype`."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, array):
        return np.frombuffer(values, values.typecode) if len(values) else np.empty(0, dtype)
    if isinstance(values, bytes | bytearray):
        return np.frombuffer(values, np.uint8)
    return np.fromiter(values, dtype, len(values))
