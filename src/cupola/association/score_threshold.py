"""Which score statistic belongs to a p-value, with the same bits on every processor.

Whoever repeats a study's steps must go on with the same variants. The mathematical functions of
libraries differ in their last digits; here are only +, -, *, / and comparisons, in a fixed order.
"""

from __future__ import annotations

from functools import lru_cache

_ROOT = 0.7978845608028654  # sqrt(2 / pi)
_HALVINGS = 100
_NEAR = 3.0  # up to here the series; beyond it the continued fraction


def two_sided(z: float) -> float:
    """P(|Z| > z) of a standard normal Z."""
    density = _ROOT * _exp_minus(z * z / 2)
    if z > _NEAR:
        fraction = z
        for n in range(400, 0, -1):
            fraction = z + n / fraction
        return density / fraction
    term = inside = z
    for n in range(1, 120):
        term = term * z * z / (2 * n + 1)
        inside = inside + term
    return 1.0 - density * inside


def _exp_minus(x: float) -> float:
    """exp(-x), x >= 0: that of a small part, squared again and again."""
    doublings = 0
    while x > 0.125:
        x, doublings = x / 2, doublings + 1
    value = 1.0
    for n in range(16, 0, -1):
        value = 1.0 - x * value / n
    for _ in range(doublings):
        value = value * value
    return value


@lru_cache
def threshold(p: float) -> float:
    """The z beyond which |Z| is with probability p; 0 for p = 1."""
    low, high = 0.0, 40.0
    if p >= 1:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if two_sided(middle) > p:
            low = middle
        else:
            high = middle
    return high
