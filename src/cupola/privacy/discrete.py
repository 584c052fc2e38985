"""Exact draws from the discrete Gaussian: integers x with probability ~ exp(-x^2 / (2 sigma^2)).

Every decision is a comparison of integers with uniform bits, so that the law is exact, in the tails
too; floating point decides nothing. The sampler is Karney's (2016), many numbers at once. |x| lies
in [k sigma, (k + 1) sigma); k comes from the half-integer powers of e, the place within by
rejection. With sigma = 2^50 / b, b whole, every probability that is tested is x = X / 2^50 (50 bits
of a word below X), 1/m or a product of such; nothing exceeds 64 bits. The tests hold it against the
slow, obvious sampler of Canonne, Kamath and Steinke (`tests/privacy/discrete_reference.py`).

sigma is not quite the standard deviation: that is less for sigma below 1, and the same to many
digits above. Times are not hidden.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cupola.errors import PlanError
from cupola.privacy.noise import Source

Words = NDArray[np.uint64]

_BITS = 50
SMALLEST, LARGEST = 2.0**-10, 2.0**30
_CHUNK = 1 << 15  # numbers at a time: they stay in the processor's cache


def divisor(sigma: float | Fraction) -> int:
    """The whole b for which 2^50 / b is the smallest such number not below sigma."""
    if not SMALLEST <= sigma <= LARGEST:
        raise PlanError(
            f"discrete noise needs a deviation from {SMALLEST:.4g} to {LARGEST:.4g} grid steps, "
            f"not {float(sigma):.4g}"
        )
    return math.floor(2**_BITS / Fraction(sigma))


def exact_sigma(sigma: float | Fraction) -> Fraction:
    """The sigma that `discrete_gaussian` has when asked for this one: as large or a little larger
    (by a millionth at most)."""
    return Fraction(2**_BITS, divisor(sigma))


def discrete_gaussian(sigma: float | Fraction, n: int, random: Source) -> NDArray[np.int64]:
    """n draws, int64, of parameter `exact_sigma(sigma)`."""
    b = divisor(sigma)
    width = -(-(2**_BITS) // b)  # sigma rounded up
    result = np.empty(n, np.int64)
    done = 0
    while done < n:
        left = n - done
        drawn = _proposals(min(_CHUNK, left + left // 2 + 16), b, width, random)
        kept = min(len(drawn), left)
        result[done : done + kept] = drawn[:kept]
        done += kept
    return result


def _proposals(n: int, b: int, width: int, random: Source) -> NDArray[np.int64]:
    """The accepted of n proposals; about seven in ten, fewer where sigma is below 1."""
    k = _ladder_steps(n, random)
    most = int(k.max(initial=0)) + 1
    firsts = [-(-(i << _BITS) // b) for i in range(most)]  # the first integer not below k sigma
    starts = [first * b - (i << _BITS) for i, first in enumerate(firsts)]
    words = random.words(n)
    product = (words >> np.uint64(32)) * np.uint64(width)
    place = (product >> np.uint64(32)).astype(np.int64)
    # Equally likely places (Lemire 2019): without the first 2^32 mod width of each one's words.
    fair = (product & np.uint64(0xFFFFFFFF)) >= np.uint64(2**32 % width)
    negative = (words & np.uint64(1)).astype(bool)
    value = np.array(firsts).take(k) + place
    # 2^50 times the place within [k sigma, (k + 1) sigma)
    x = np.array(starts).take(k) + place * b
    fair &= x < 2**_BITS
    fair &= ~(negative & (value == 0))  # zero has no sign
    at = np.flatnonzero(fair)
    at = at[_exp_square(x[at].view(np.uint64), random)]
    k, within, value, negative = k[at], x[at].view(np.uint64), value[at], negative[at]
    alive = np.ones(len(at), bool)
    for step in range(1, most):  # exp(-k x)
        at = np.flatnonzero(alive & (k >= step))
        alive[at] = _exp(within[at], random)
    value = value[alive]
    return np.where(negative[alive], -value, value)


def _below(x: Words, random: Source) -> NDArray[np.bool_]:
    """True with probability x / 2^50, each."""
    return (random.words(len(x)) >> np.uint64(64 - _BITS)) < x


def _one_in(m: int, n: int, random: Source) -> NDArray[np.bool_]:
    """n times true with probability 1/m."""
    result = np.zeros(n, bool)
    open_ = np.arange(n)
    most = 2**64 // m * m
    while len(open_):
        words = random.words(len(open_))
        fair = words <= np.uint64(most - 1)
        result[open_[fair]] = words[fair] % np.uint64(m) == 0
        open_ = open_[~fair]
    return result


def _exp(x: Words, random: Source) -> NDArray[np.bool_]:
    """True with probability exp(-x / 2^50), x up to 2^50.

    Trials of probability x/1, x/2, x/3, ... until one fails: the m-th with probability
    x^(m-1)/(m-1)! - x^m/m!, so that it is an odd one with probability exp(-x).
    """
    return _first_failure_odd(x, random, lambda part: _below(part, random))


def _exp_square(x: Words, random: Source) -> NDArray[np.bool_]:
    """True with probability exp(-(x / 2^50)^2 / 2)."""

    def half_square(part: Words) -> NDArray[np.bool_]:
        hit = _one_in(2, len(part), random)
        at = np.flatnonzero(hit)
        for _ in range(2):
            at = at[_below(part[at], random)]
        hit[:] = False
        hit[at] = True
        return hit

    return _first_failure_odd(x, random, half_square)


def _first_failure_odd(
    x: Words, random: Source, trial: Callable[[Words], NDArray[np.bool_]]
) -> NDArray[np.bool_]:
    """Whether the first trial that fails, the m-th of probability trial(x) / m, is an odd one."""
    result = np.zeros(len(x), bool)
    open_, m = np.arange(len(x)), 1
    while len(open_):
        hit = trial(x[open_])
        if m > 1:
            at = np.flatnonzero(hit)
            hit[at] = _one_in(m, len(at), random)
        if m % 2:
            result[open_[~hit]] = True
        open_, m = open_[hit], m + 1
    return result


# k with probability ~ exp(-k^2 / 2)


@lru_cache(maxsize=8)
def _ladder(bits: int) -> list[int]:
    """floor(2^bits P(K <= k)) for k = 0, 1, ... until all but less than 2^-bits is there.

    Sums of powers of exp(-1/2), with bounds from both sides; more digits until they agree.
    """
    guard = 32
    while True:
        one = 1 << (bits + guard)
        top = 2 * math.isqrt(bits + guard) + 2  # exp(-top^2 / 2) is far below 2^-(bits + guard)
        powers = [_exp_half(k * k, bits + guard) for k in range(top + 1)]
        least = [sum(powers[: k + 1]) for k in range(top + 1)]
        most = [s + k + 1 for k, s in enumerate(least)]  # each power errs by less than one
        total, above = least[-1], most[-1] + 1  # and all beyond by less than one together
        low = [s * one // above >> guard for s in least]
        high = [(s * one // total + 1) >> guard for s in most]
        steps = [a for a, b in zip(low, high) if a == b < 1 << bits]
        sure = all(a == b or b >= 1 << bits for a, b in zip(low, high))
        if sure and steps[-1] == (1 << bits) - 1:
            return steps
        guard += 32


def _exp_half(halves: int, bits: int) -> int:
    """floor(2^bits exp(-halves / 2)): one over a sum of fractions."""
    x, extra = Fraction(halves, 2), 64
    precision = bits + extra + halves
    terms, total, m = 1 << precision, 0, 0
    while terms:  # exp(x), each term rounded down
        total += terms
        m += 1
        terms = terms * x.numerator // (x.denominator * m)
    low = (1 << (precision + bits)) // (total + 4 * m)
    high = (1 << (precision + bits)) // total
    assert low == high or halves == 0, "more digits"
    return high


def _ladder_steps(n: int, random: Source) -> NDArray[np.int64]:
    """n draws of k. 64 bits of a uniform number decide, unless they lie on a step: then more."""
    words = random.words(n)
    steps = np.array(_ladder(64), np.uint64)
    k = np.searchsorted(steps, words, side="left").astype(np.int64)
    tied = np.flatnonzero(steps[np.minimum(k, len(steps) - 1)] == words)
    for i in tied:  # once in 10^18 draws
        prefix, bits = int(words[i]), 64
        while prefix in _ladder(bits):
            prefix, bits = prefix << 64 | int(random.words(1)[0]), bits + 64
        k[i] = bisect_left(_ladder(bits), prefix)
    return k
