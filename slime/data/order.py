"""The order in which prompts are handed out: epoch after epoch, and of several sets by their weights.

Held: within an epoch of a set each of its prompts comes once; the order depends on the seed and the epoch alone; after
any number of prompts, each set has had its share of them but for a few; the state is one number a set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Order:
    """The numbers first .. first + size - 1, again and again; shuffled where there is a `seed`. `drawn`: how many so
    far."""

    def __init__(self, first: int, size: int, seed: Sequence[int] | None) -> None:
        self._first, self.size, self._seed = first, size, seed
        self.go_to(0)

    @property
    def epoch(self) -> int:
        """How many times all of them have been drawn."""
        return self.drawn // self.size

    def go_to(self, drawn: int) -> None:
        self.drawn = drawn
        self._shuffle()

    def draw(self) -> int:
        number = self._first + int(self._order[self.drawn % self.size])
        self.drawn += 1
        if self.drawn % self.size == 0:
            self._shuffle()
        return number

    def _shuffle(self) -> None:
        self._order = np.arange(self.size)
        if self._seed is not None:
            seed, *which = self._seed
            self._order = np.random.default_rng([seed, self.epoch, *which]).permutation(self.size)


class Mixture:
    """Several orders of `sizes`, drawn from in proportion to `weights`."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int | None) -> None:
        """`seed`: that of the shuffling; None leaves every set as it is."""
        firsts = np.cumsum([0, *sizes[:-1]]).tolist()
        seeds = [None if seed is None else [seed, *([which] if which else [])] for which in range(len(sizes))]
        self._orders = [Order(*one) for one in zip(firsts, sizes, seeds, strict=True)]
        self._shares = [weight / sum(weights) for weight in weights]

    @property
    def epoch(self) -> int:
        """How many times all prompts of all sets have been drawn, at least."""
        return min(order.epoch for order in self._orders)

    @property
    def drawn(self) -> list[int]:
        """How many of each set so far: the whole state."""
        return [order.drawn for order in self._orders]

    def go_to(self, drawn: Sequence[int]) -> None:
        for order, number in zip(self._orders, drawn, strict=True):
            order.go_to(number)

    def draw(self) -> int:
        """From the set that is furthest behind its share, the first of several."""
        total = sum(self.drawn) + 1
        behind = [share * total - drawn for share, drawn in zip(self._shares, self.drawn, strict=True)]
        return self._orders[int(np.argmax(behind))].draw()
