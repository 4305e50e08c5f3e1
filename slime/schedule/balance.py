"""Dealing weighted items out to parts of about equal weight.

Every item lands in exactly one part; a part lists its items in increasing order; the result depends on the arguments
alone (ties go to the lower index), so that every process that computes it gets the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import itemgetter

PLENTY = 96  # items a part, from which on neighbours in weight may begin together: as even, in a third of the time
_weight = itemgetter(0)


def round_robin(num_items: int, num_parts: int) -> list[list[int]]:
    """Item i goes to part i mod num_parts."""
    return [list(range(part, num_items, num_parts)) for part in range(num_parts)]


def largest_differencing(weights: Sequence[int], num_parts: int, *, equal_counts: bool = False) -> list[list[int]]:
    """Karmarkar and Karp's differencing method (1982) for any number of parts, in O(n log n + n * num_parts).

    A solution is a way to deal some of the items out; its spread is its heaviest part minus its lightest. Each item
    begins as a solution of its own. The two solutions of largest spread are joined, the heaviest parts of one with the
    lightest of the other, until one is left.

    With `equal_counts`, and wherever there are PLENTY of items, they begin in solutions of `num_parts` neighbours in
    weight, one item a part; so the counts of any two parts differ by one at most.
    """
    heaviest_first = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
    width = num_parts if equal_counts or len(weights) >= PLENTY * num_parts else 1
    # A solution lists its parts that hold something, heaviest first, as (weight, items); items are a tree of pairs, so
    # that joining costs the same however many items there are.
    solutions = [
        [(weights[item], item) for item in heaviest_first[start : start + width]]
        for start in range(0, len(weights), width)
    ]

    heap = [(_negative_spread(parts, num_parts), order, parts) for order, parts in enumerate(solutions)]
    heapq.heapify(heap)
    order = len(heap)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heap[0]
        joined = _join(first, second, num_parts)
        heapq.heapreplace(heap, (_negative_spread(joined, num_parts), order, joined))
        order += 1

    parts = [_leaves(items) for _, items in heap[0][2]] if heap else []
    return parts + [[] for _ in range(num_parts - len(parts))]


def _negative_spread(parts: list[tuple], num_parts: int) -> int:
    lightest = parts[-1][0] if len(parts) == num_parts else 0
    return lightest - parts[0][0]


def _join(first: list[tuple], second: list[tuple], num_parts: int) -> list[tuple]:
    """The heaviest part of `first` with the lightest of `second`, and so on; parts not listed weigh nothing."""
    shared = len(first) + len(second) - num_parts
    if shared <= 0:
        return sorted(first + second, key=_weight, reverse=True)
    both = [
        (weight + other, (items, more))
        for (weight, items), (other, more) in zip(first[-shared:], reversed(second[-shared:]), strict=True)
    ]
    return sorted(first[:-shared] + second[:-shared] + both, key=_weight, reverse=True)


def _leaves(tree: int | tuple) -> list[int]:
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        else:
            found.append(node)
    return sorted(found)
