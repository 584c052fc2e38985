"""Noise for running sums (DP-FTRL): correlated over steps, so that prefix sums stay accurate.

The matrix A of prefix sums (lower triangle of ones) is factored as A = B C. The mechanism releases
B (C x + z) for contributions x and independent standard normal z, so that step t gets the noise
(B z)_t, and what is protected is C x: its L2 sensitivity is what the noise is measured against.
This holds for contributions that depend on earlier outputs too, since row t of B uses only parts
of C x that are complete at step t (Denisov et al. 2022; Kairouz et al. 2021 for trees).

- tree: C has a row for every dyadic block of steps, B adds the blocks of the binary expansion of t
  (Dwork et al. 2010). Blocks that no prefix uses are never released and do not count.
- tree-honaker: the same blocks, each estimated from itself and its two halves (Honaker 2015, the
  bottom-up version of DP-FTRL), so that all blocks count and the variance is about half.
- toeplitz: B = C = A^(1/2), a Toeplitz matrix with the coefficients of (1 - x)^(-1/2)
  (Fichtenberger, Henzinger, Upadhyay 2023).
- independent: C = 1, for comparison.

A site may take part several times: `participations` times at most, at least `separation` steps
apart. Whoever promises a sensitivity must enforce that pattern.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cupola.base.registry import Registry
from cupola.privacy.events import check_count
from cupola.privacy.worst_pattern import WorstPattern

Vector = NDArray[np.float64]
Draw = Callable[[int], Vector]
"""The i-th block (i = 0, 1, ...) of independent standard normal values; the same for the same i.

Steps share blocks. Fresh values at every step would average out: the guarantee would be void."""

EXACT_STEPS = 1 << 14  # of a tree; a question with more must not keep a site busy for minutes
_ROUND_UP = 1 + 1e-12  # a sensitivity is an upper bound in floating point too


class PrefixMechanism(ABC):
    """A factorisation of prefix sums; stateless, with no length of its own."""

    name: ClassVar[str]

    def sensitivity(self, steps: int, participations: int = 1, separation: int = 1) -> float:
        """The largest L2 norm of C x, for contributions of norm at most 1 (add-remove).

        Exact, but for `_ROUND_UP`; for trees of more than `EXACT_STEPS` steps an upper bound.

        The maximum is over all allowed patterns S, sets of steps, and over all contributions: a
        vector x_i with |x_i| <= 1 for every i in S, in any direction. With G = C'C

            |C x|^2 = sum over i, j in S of G_ij <x_i, x_j> <= sum over i, j in S of G_ij

        since <x_i, x_j> <= 1 and G_ij >= 0: no entry of C is negative. Equal unit vectors reach it.
        So the worst contributions are equal, and what is left is the largest sum of G over S, which
        never falls when S gets larger. Contributions may depend on earlier outputs: the bound holds
        for each of their values.
        """
        check_count("steps", steps, least=1)
        check_count("participations", participations, least=1)
        check_count("separation", separation, least=1)
        most = min(participations, -(-steps // separation))
        return math.sqrt(_remembered(self, steps, most, separation)) * _ROUND_UP

    @abstractmethod
    def _squared(self, steps: int, participations: int, separation: int) -> float:
        """The squared sensitivity; so many participations do fit."""

    @abstractmethod
    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        """Row t (1-based) of B: pairs of a block's number and its weight, zeros left out."""

    def noise(self, t: int, draw: Draw) -> Vector:
        """The noise of the prefix sum after step t (1-based), for draws of unit deviation; needs
        nothing from earlier steps."""
        check_count("t", t, least=1)
        total: Vector | None = None
        for number, weight in self.weights(t):
            part = weight * draw(number)
            total = part if total is None else np.add(total, part, out=total)
        assert total is not None
        return total

    @abstractmethod
    def dense(self, steps: int) -> tuple[Vector, Vector]:
        """B and C as plain arrays (steps x blocks, blocks x steps): the slow, obvious reference."""


@lru_cache(maxsize=1024)
def _remembered(mechanism: PrefixMechanism, steps: int, most: int, separation: int) -> float:
    return mechanism._squared(steps, most, separation)


class Independent(PrefixMechanism):
    """Fresh noise for every contribution; a prefix sum gathers all of it."""

    name = "independent"

    def _squared(self, steps: int, participations: int, separation: int) -> float:
        del steps, separation
        return participations

    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        return ((number, 1.0) for number in range(t))

    def dense(self, steps: int) -> tuple[Vector, Vector]:
        return np.tril(np.ones((steps, steps))), np.eye(steps)


class Toeplitz(PrefixMechanism):
    """The square root of the matrix of prefix sums. A step costs as many draws as steps passed."""

    name = "toeplitz"

    def _squared(self, steps: int, participations: int, separation: int) -> float:
        # The earliest pattern 0, b, 2b, ... is the worst (Kalinin and Lampert 2024). Counting steps
        # from 0, G_ij for i <= j is the sum over u < n - j of r_u r_(u + j - i). The coefficients r
        # are positive and fall, so that G_ij falls with j and with j - i. The earliest pattern has
        # the least of both for its k-th and its l-th step, among all patterns.
        rows = -(-steps // separation)
        padded = np.zeros(rows * separation)
        padded[:steps] = _coefficients(steps)
        sums = np.cumsum(padded.reshape(rows, separation), axis=0)
        sums[participations:] -= sums[:-participations].copy()
        return float(np.sum(np.square(sums.reshape(-1)[:steps])))

    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        return zip(range(t), map(float, _coefficients(t)[::-1]))

    def dense(self, steps: int) -> tuple[Vector, Vector]:
        lag = np.subtract.outer(np.arange(steps), np.arange(steps))
        root = np.where(lag >= 0, _coefficients(steps)[np.maximum(lag, 0)], 0.0)
        return root, root


def _coefficients(count: int) -> Vector:
    """The first coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ..."""
    size = 1 << max(count - 1, 0).bit_length()  # few distinct lengths, so that they are remembered
    return _all_coefficients(size)[:count]


@lru_cache(maxsize=32)
def _all_coefficients(count: int) -> Vector:
    k = np.arange(1.0, count)
    values = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    values.flags.writeable = False
    return values


class Tree(PrefixMechanism):
    """A binary tree over the steps. Blocks are numbered in the order in which they are complete."""

    name = "tree"
    _lone_halves: ClassVar[bool] = False  # whether second halves are released too

    def _squared(self, steps: int, participations: int, separation: int) -> float:
        if steps <= EXACT_STEPS:
            pattern = (steps, participations, separation)
            return WorstPattern(*pattern, second_halves=self._lone_halves).squared()
        # Level by level: a block of 2^h steps holds at most ceil(2^h / separation) participations,
        # and the sum of squares is largest when as many blocks as possible are full. No one pattern
        # need do so at all levels, so it is an upper bound (some per cent, at most 15 found).
        total = 0
        for height in range(steps.bit_length()):
            blocks = steps >> height
            if not self._lone_halves:
                blocks = (blocks + 1) // 2
            full = min(participations, -(-(1 << height) // separation))
            filled = min(blocks, participations // full)
            rest = participations - filled * full if filled < blocks else 0
            total += filled * full**2 + rest**2
        return float(total)

    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        return ((_number(end, height), 1.0) for end, height in _blocks(t))

    def dense(self, steps: int) -> tuple[Vector, Vector]:
        numbers = range(2 * steps - steps.bit_count())
        left, right = np.zeros((steps, len(numbers))), np.zeros((len(numbers), steps))
        for end in range(1, steps + 1):
            for height in range((end & -end).bit_length()):
                right[_number(end, height), end - (1 << height) : end] = 1
            for number, weight in self.weights(end):
                left[end - 1, number] += weight
        used = np.any(left != 0, axis=0)
        return left[:, used], right[used]


class HonakerTree(Tree):
    """The tree whose blocks are estimated from all draws below them, with the least variance."""

    name = "tree-honaker"
    _lone_halves = True

    def weights(self, t: int) -> Iterator[tuple[int, float]]:
        for end, height in _blocks(t):
            yield from self._below(end, height)

    def _below(self, end: int, height: int) -> Iterator[tuple[int, float]]:
        """Weights of all draws in the estimate of one block."""
        share = 1.0
        for level in range(height, -1, -1):
            own = share * _own_weight(level)
            for last in range(end - (1 << height) + (1 << level), end + 1, 1 << level):
                yield _number(last, level), own
            share *= 1 - _own_weight(level)


def _own_weight(height: int) -> float:
    """The weight of a block's own draw beside the sum of its halves: inverse to the variances."""
    return 2.0**height / (2.0 ** (height + 1) - 1)


def _blocks(t: int) -> list[tuple[int, int]]:
    """The dyadic blocks that make up steps 1..t, largest first: (last step, height)."""
    found, end = [], 0
    for height in range(t.bit_length() - 1, -1, -1):
        if t >> height & 1:
            end += 1 << height
            found.append((end, height))
    return found


def _number(end: int, height: int) -> int:
    """The number of the block of 2^height steps that is complete at step `end`, from 0."""
    return 2 * (end - 1) - (end - 1).bit_count() + height


_MECHANISMS: Registry[PrefixMechanism] = Registry(what="prefix mechanism", own=False)
for _mechanism in (Tree(), HonakerTree(), Toeplitz(), Independent()):
    _MECHANISMS.add(_mechanism.name)(_mechanism)


def names() -> list[str]:
    """The names that `find` knows."""
    return _MECHANISMS.names()


def find(name: str) -> PrefixMechanism:
    """The mechanism of this name: tree, tree-honaker, toeplitz, independent."""
    return _MECHANISMS.find(name)
