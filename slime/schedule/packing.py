"""Packing the samples of one rank into micro-batches.

Every sample lands in exactly one micro-batch. Both functions give `count` micro-batches, or as many more as the limit
demands (`by_tokens` only); some are empty when there are fewer samples than that.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise


def by_count(samples: Sequence[int], count: int) -> list[list[int]]:
    """Consecutive samples, in `count` micro-batches whose sizes differ by one at most."""
    size, larger = divmod(len(samples), count)
    starts = [i * size + min(i, larger) for i in range(count + 1)]
    return [list(samples[start:end]) for start, end in pairwise(starts)]


def by_tokens(samples: Sequence[int], lengths: Sequence[int], max_tokens: int, count: int = 1) -> list[list[int]]:
    """At most `max_tokens` tokens a micro-batch; a sample longer than that is alone in its own.

    Longest sample first, each into the micro-batch with the fewest tokens (worst fit decreasing); where it does not fit
    there it fits nowhere, and another is opened. So they come out even, in at most about 5/4 of the fewest possible.
    The fullest is first: micro-batches that ranks run at the same time then take about the same time.
    """
    fewest = -(-sum(min(lengths[s], max_tokens) for s in samples) // max_tokens)
    micro_batches: list[list[int]] = [[] for _ in range(max(count, fewest))]
    loads = [(0, index) for index in range(len(micro_batches))]
    for sample in sorted(samples, key=lengths.__getitem__, reverse=True):
        load, index = loads[0]
        if load and load + lengths[sample] > max_tokens:
            index = len(micro_batches)
            micro_batches.append([sample])
            heapq.heappush(loads, (lengths[sample], index))
        else:
            micro_batches[index].append(sample)
            heapq.heapreplace(loads, (load + lengths[sample], index))
    return [sorted(micro_batches[index]) for _, index in sorted(loads, key=lambda load: (-load[0], load[1]))]
