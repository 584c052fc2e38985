"""Noise for prefix sums, correlated over steps so that little of it adds up (for DP-FTRL).

The prefix sums A x of a stream x (A: ones on and below the diagonal) are released as A x + B z, where
A = B C and z is independent Gaussian noise: C x + z is a Gaussian mechanism whose noise multiplier is
that of z over the sensitivity of C, and B(C x + z) is computed from it. This also holds if x depends
on earlier releases (Denisov et al. 2022).

tree: C holds the sums over the nodes of a binary tree; a prefix is the sum of few nodes.
tree-honaker: the same C, but every node's sum is estimated from its whole subtree (Honaker 2015;
    bottom-up only, as the future is not known), which lowers the variance at the same epsilon.
toeplitz: B = C = A^(1/2), whose columns are 1, 1/2, 3/8, 5/16, ... (Henzinger et al. 2023).

A unit's contributions are vectors of norm at most 1 in `participations` steps, at least
`separation` steps apart; in the worst case they all point the same way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from cupola.errors import PlanError

Draw = Callable[[int], np.ndarray]
LEVELS = 64  # of a tree; more than anybody's steps fill


class PrefixMechanism(ABC):
    """A factorisation A = B C of prefix sums."""

    @abstractmethod
    def sensitivity(self, steps: int, participations: int = 1, separation: int = 1) -> float:
        """L2 sensitivity of C x over so many steps; exact, or an upper bound."""

    @abstractmethod
    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        """Row t of B (t from 1): numbers of draws, and their weights."""

    def noise(self, t: int, draw: Draw) -> np.ndarray:
        """Noise of the prefix sum after step t, for independent draws of deviation 1.

        draw(i) must give the same array whenever it is asked for i: so nothing is kept from step
        to step.
        """
        if t < 1:
            raise PlanError(f"step {t}: the first prefix sum is that of step 1")
        total: np.ndarray | None = None
        for number, weight in self.weights(t):
            drawn = draw(number) * weight
            total = drawn if total is None else np.add(total, drawn, out=total)
        assert total is not None
        return total

    def variance(self, t: int) -> float:
        """Of the noise of the prefix sum after step t."""
        return math.fsum(weight * weight for _, weight in self.weights(t))

    def error(self, steps: int) -> float:
        """Root of the mean squared error over all prefix sums at noise multiplier 1, for single
        participation: deviation of the noise times the sensitivity."""
        mean = math.fsum(self.variance(t) for t in range(1, steps + 1)) / steps
        return math.sqrt(mean) * self.sensitivity(steps)


def _check(steps: int, participations: int, separation: int) -> int:
    """How often a unit can really take part."""
    for name, value in (
        ("steps", steps), ("participations", participations), ("separation", separation),
    ):  # fmt: skip
        if value < 1:
            raise PlanError(f"{name} = {value} must be at least 1")
    return min(participations, -(-steps // separation))


class Tree(PrefixMechanism):
    """Sums over the nodes of a binary tree."""

    def sensitivity(self, steps: int, participations: int = 1, separation: int = 1) -> float:
        """Exact for one participation; otherwise an upper bound.

        A level's nodes hold the k participations between them, none more than `most`, so that the
        squares of what they hold add up to at most k * most. Only nodes that are complete within
        the steps are ever noised.
        """
        k = _check(steps, participations, separation)
        levels = steps.bit_length()  # nodes of 1, 2, 4, ... <= steps leaves
        square = sum(k * min(k, -(-(2**level) // separation)) for level in range(levels))
        return math.sqrt(square)

    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        for level, place in _nodes(t):
            yield _number(level, place), 1.0


class HonakerTree(Tree):
    """The same sums, each estimated from all nodes below it."""

    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        for level, place in _nodes(t):
            rest = 1.0
            for below in range(level + 1):
                # An estimate from height h has variance v; the node's own noise gets weight v.
                own = _variance(level - below)
                weight = rest * own
                for i in range(2**below):
                    yield _number(level - below, (place << below) + i), weight
                rest *= 1 - own


def _variance(height: int) -> float:
    """Of the best estimate of a node's sum from its subtree: v = 1 / (1 + 1 / (2 v_below))."""
    return 2.0**height / (2.0 ** (height + 1) - 1)


def _nodes(t: int) -> Iterator[tuple[int, int]]:
    """(level, place) of the complete nodes that make up the first t leaves."""
    start = 0
    for level in reversed(range(t.bit_length())):
        if t >> level & 1:
            yield level, start >> level
            start += 1 << level


def _number(level: int, place: int) -> int:
    return place * LEVELS + level


class Toeplitz(PrefixMechanism):
    """The square root of the matrix of ones below the diagonal."""

    def sensitivity(self, steps: int, participations: int = 1, separation: int = 1) -> float:
        """Exact. Columns are non-negative and decreasing, so that participations as early and as
        close as allowed overlap most (Kalinin and Lampert 2024, theorem 2)."""
        k = _check(steps, participations, separation)
        column = _column(steps)
        total = np.zeros(steps)
        for start in range(0, min(k * separation, steps), separation):
            total[start:] += column[: steps - start]
        return float(np.sqrt(total @ total))

    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        for i, weight in enumerate(_column(t)[::-1]):
            yield i, float(weight)

    def error(self, steps: int) -> float:
        squares = np.cumsum(_column(steps) ** 2)
        return math.sqrt(squares.mean()) * self.sensitivity(steps)


@lru_cache(maxsize=64)
def _column(steps: int) -> np.ndarray:
    """binomial(2 i, i) / 4^i for i = 0 .. steps-1."""
    i = np.arange(1, steps)
    return np.concatenate([[1.0], np.cumprod((2 * i - 1) / (2 * i))])


_KNOWN: dict[str, PrefixMechanism] = {
    "tree": Tree(),
    "tree-honaker": HonakerTree(),
    "toeplitz": Toeplitz(),
}


def find(name: str) -> PrefixMechanism:
    """A mechanism by name."""
    if name not in _KNOWN:
        raise PlanError(f"privacy.matrix = '{name}' is unknown; known: {', '.join(_KNOWN)}")
    return _KNOWN[name]
