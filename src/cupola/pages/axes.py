"""Scales and ticks of a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cupola.base.formatting import Unit


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(v, 1e-12)) for v in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def ticks(low: float, high: float, unit: Unit, most: int = 6) -> list[float]:
    """Round values between low and high (in the axis's unit), at most about `most`."""
    a, b = low / unit.scale, high / unit.scale
    if not b > a:
        return [low]
    step = 10 ** math.floor(math.log10((b - a) / most))
    step *= next((f for f in (1, 2, 5, 10) if (b - a) / (step * f) <= most), 10)
    first, last = math.ceil(a / step - 1e-9), math.floor(b / step + 1e-9)
    return [i * step * unit.scale for i in range(first, last + 1)]


def log_ticks(low: float, high: float, unit: Unit) -> list[float]:
    """1, 2, 5 times powers of ten, thinned to what fits."""
    a, b = low / unit.scale, high / unit.scale
    powers = range(math.floor(math.log10(a)), math.ceil(math.log10(b)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**p for p in powers for f in factors if a <= f * 10.0**p <= b]
        if len(found) <= 7:
            break
    return [v * unit.scale for v in found]


def span(
    values: Sequence[float], zero: bool = False, top: float | None = None
) -> tuple[float, float]:
    """Lowest and highest with a little air; from zero, or not above `top`, where asked."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or abs(high) * 0.1 or 0.5
    low, high = (0.0 if zero and low >= 0 else low - air), high + air
    return low, (min(high, top) if top is not None and max(values) <= top else high)


def thin(count: int, most: int = 240) -> list[int]:
    """Indices of at most about `most` points, evenly spread, both ends kept."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
