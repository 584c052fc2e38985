"""The discrete Gaussian, the slow, obvious way: one number at a time, with Python's integers.

Canonne, Kamath and Steinke (2020).
"""

from __future__ import annotations

import math
from fractions import Fraction

from cupola.privacy.noise import Source


def reference(sigma: Fraction, random: Source) -> int:
    """One draw of parameter sigma (exactly): Canonne, Kamath and Steinke 2020, algorithm 3."""
    square = sigma * sigma
    t = math.floor(sigma) + 1
    while True:
        y = _discrete_laplace(t, random)
        if _bernoulli_exp((abs(y) - square / t) ** 2 / (2 * square), random):
            return y


def _uniform(n: int, random: Source) -> int:
    """A whole number from 0 to n - 1."""
    bits = max(1, (n - 1).bit_length())
    while True:
        drawn = 0
        for _ in range(-(-bits // 64)):
            drawn = drawn << 64 | int(random.words(1)[0])
        drawn >>= -bits % 64
        if drawn < n:
            return drawn


def _bernoulli(p: Fraction, random: Source) -> bool:
    return _uniform(p.denominator, random) < p.numerator


def _bernoulli_exp(x: Fraction, random: Source) -> bool:
    """True with probability exp(-x), x >= 0 (algorithm 1)."""
    while x > 1:
        if not _bernoulli_exp(Fraction(1), random):
            return False
        x -= 1
    m = 1
    while _bernoulli(x / m, random):
        m += 1
    return m % 2 == 1


def _discrete_laplace(t: int, random: Source) -> int:
    """A whole number y with probability ~ exp(-|y| / t) (algorithm 2)."""
    while True:
        u = _uniform(t, random)
        if not _bernoulli_exp(Fraction(u, t), random):
            continue
        v = 0
        while _bernoulli_exp(Fraction(1), random):
            v += 1
        y = u + t * v
        if _bernoulli(Fraction(1, 2), random):
            if y == 0:
                continue
            return -y
        return y
