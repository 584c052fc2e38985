"""The worst participation pattern of a binary tree, exactly, by dynamic programming.

A pattern is a set of at most k of the steps 1..n, any two of them at least b apart. A block (node)
that holds c of them adds c^2 to the squared sensitivity, if it is released. Found is the largest
sum over all patterns.

All that the steps after a block need to know of a pattern inside it is how many participations it
has, and for how many more steps the last of them forbids another: the *wait*. So a `Frontier` keeps
the largest sum for every (wait, count), and forgets a sum that another reaches with a shorter wait
and the same count. Where k binds nowhere (k >= n / b, sites that take turns) more participations
are never worse, and a sum is also forgotten for one with a larger count: few are left.

Blocks of one height and one wait at their start have one frontier, made of those of their halves.

Cost: heights (log2 n) x waits that occur (at most b, and some n/b log n) x pairs of entries of two
frontiers. Measured over b and k: at most 0.1 s for 4,095 steps, 0.7 s for 16,383.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Frontier = dict[int, NDArray[np.float64]]
"""Wait -> the largest sum of squares for 0, 1, 2, ... participations; -inf: not kept."""


class WorstPattern:
    """Over `steps` steps, with at most `most` participations at least `separation` apart.

    second_halves: whether blocks that are the second half of another are released.
    """

    def __init__(self, steps: int, most: int, separation: int, second_halves: bool) -> None:
        self.steps, self.most, self.separation = steps, most, separation
        self.second_halves = second_halves
        self.free = most >= -(-steps // separation)  # the number of participations is no limit
        self._known: dict[tuple[int, int], Frontier] = {}

    def squared(self) -> float:
        """The largest sum of squared counts over released blocks.

        Complete blocks are those of the binary expansion of `steps` and what is below them.
        """
        found: Frontier = {0: np.zeros(1)}
        for height in range(self.steps.bit_length() - 1, -1, -1):
            if self.steps >> height & 1:
                found = self._followed(found, height, released=True)
        return max(float(sums.max()) for sums in found.values())

    def _block(self, height: int, wait: int, released: bool) -> Frontier:
        """Of a block of 2^height steps, the first `wait` of which are forbidden."""
        found = self._inside(height, wait)
        if not released:
            return found
        return {w: sums + np.arange(len(sums)) ** 2.0 for w, sums in found.items()}

    def _inside(self, height: int, wait: int) -> Frontier:
        """The same without the block's own count: of all that is below it."""
        size = 1 << height
        if wait >= size:
            return {wait - size: np.zeros(1)}
        if (height, wait) not in self._known:
            self._known[height, wait] = self._step() if height == 0 else self._halves(height, wait)
        return self._known[height, wait]

    def _step(self) -> Frontier:
        """One step: not there, or there once."""
        return self._kept([(0, np.zeros(1)), (self.separation - 1, np.array([-np.inf, 0.0]))])

    def _halves(self, height: int, wait: int) -> Frontier:
        first = self._block(height - 1, wait, released=True)
        return self._followed(first, height - 1, released=self.second_halves)

    def _followed(self, first: Frontier, height: int, released: bool) -> Frontier:
        """A pattern so far, and all ways to go on in a block of this height."""
        return self._kept(
            (after, _best_sums(sums, more, self.most))
            for wait, sums in first.items()
            for after, more in self._block(height, wait, released).items()
        )

    def _kept(self, found: Iterable[tuple[int, NDArray[np.float64]]]) -> Frontier:
        """Without what is reached with a shorter wait, or (if free) with a larger count."""
        by_wait: Frontier = {}
        for wait, sums in found:
            by_wait[wait] = _larger(by_wait.get(wait, sums), sums)
        kept: Frontier = {}
        beaten = np.full(self.most + 2, -np.inf)  # by count: what shorter waits reach
        for wait in sorted(by_wait):
            sums = by_wait[wait]
            reached = np.maximum(beaten[: len(sums)], self._with_more(sums))
            sums = np.where(sums > reached, sums, -np.inf)
            alive = np.flatnonzero(sums > -np.inf)
            if len(alive):
                kept[wait] = sums[: alive[-1] + 1]
                beaten = _larger(beaten, kept[wait])
                if self.free:
                    beaten = np.maximum.accumulate(beaten[::-1])[::-1]
        return kept

    def _with_more(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """By count: the largest sum of a larger count, where that is as good."""
        if not self.free:
            return np.full(len(sums), -np.inf)
        return np.append(np.maximum.accumulate(sums[:0:-1])[::-1], -np.inf)


def _best_sums(a: NDArray[np.float64], b: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """By total count up to `most`: the largest sum of one entry of each (max-plus convolution)."""
    found = np.full(min(len(a) + len(b) - 1, most + 1), -np.inf)
    for count in np.flatnonzero(a[: len(found)] > -np.inf):
        part = found[count : count + len(b)]
        np.maximum(part, a[count] + b[: len(part)], out=part)
    return found


def _larger(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entry by entry; missing entries count as -inf."""
    short, long = sorted((a, b), key=len)
    found = long.copy()
    np.maximum(found[: len(short)], short, out=found[: len(short)])
    return found
