"""How much privacy a list of events has spent, and how much noise a target needs.

Every figure is an upper bound at the stated delta, for one record of one site, against whoever
sees all of the answers. Two methods, both on top of `dp-accounting`: privacy loss distributions
(`pld`, the default: tight) and Renyi divergences (`rdp`, which older papers report). What each
covers:

| event | add-remove | replace-one |
|---|---|---|
| Gaussian, Pure, Approximate | pld, rdp | pld, rdp; an add-remove event counts double |
| Concentrated | rdp | rdp; an add-remove event counts fourfold |
| SampledGaussian, poisson | pld, rdp | pld, rdp; both are looser than for add-remove |
| SampledGaussian, without-replacement | refused | pld, rdp |

Where the grid of a loss distribution cannot resolve the answer (delta below 1e-10, epsilon in the
hundreds) `best` falls back to Renyi divergences, and it never returns more than they do. So it does
where one of the events is known by its divergences alone (`Concentrated`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import get_args
from zlib import crc32

import numpy as np

from cupola.errors import PlanError
from cupola.privacy import loss_distributions as losses
from cupola.privacy import renyi
from cupola.privacy.composition import (
    SMALLEST_DELTA,
    Method,
    compose,
    divergence,
    grid,
    halves,
    has_losses,
    readable,
    rough_epsilon,
    rounding,
    total_delta,
    total_epsilon,
)
from cupola.privacy.events import (
    MOST_COUNT,
    Event,
    Gaussian,
    Neighbours,
    SampledGaussian,
    Sampling,
    check_choice,
    check_number,
    merge,
)

Limit = tuple[float, float, Neighbours]
"""epsilon, delta, and for which neighbours."""

_MOST_STEPS = 10**9


def _check(delta: float | None, neighbours: str, method: str) -> None:
    if delta is not None:
        check_number("delta", delta, above=0, below=1)
    check_choice("neighbours", neighbours, get_args(Neighbours))
    check_choice("method", method, get_args(Method))


def epsilon(
    events: Sequence[Event],
    delta: float,
    *,
    neighbours: Neighbours = "add-remove",
    method: Method = "best",
) -> float:
    """The smallest epsilon for which all events together are (epsilon, delta)-private.

    The events may be of different kinds and chosen adaptively. inf if any of them is unprotected,
    or if `pld` is asked for where no grid resolves the answer.

    >>> from cupola.privacy.events import SampledGaussian
    >>> dp_sgd = SampledGaussian(rate=0.01, noise=1.0, count=1000)  # a thousand steps
    >>> round(epsilon([dp_sgd], delta=1e-5), 2)
    1.83
    """
    _check(delta, neighbours, method)
    return total_epsilon(merge(events), float(delta), neighbours, method)


def delta(
    events: Sequence[Event],
    epsilon: float,
    *,
    neighbours: Neighbours = "add-remove",
    method: Method = "best",
) -> float:
    """The smallest delta (at most 1) for which all events together are (epsilon, delta)-private."""
    _check(None, neighbours, method)
    epsilon = check_number("epsilon", epsilon, above=0)
    return total_delta(merge(events), epsilon, neighbours, method)


def calibrate(
    events_at: Callable[[float], Sequence[Event]],
    epsilon: float,
    delta: float,
    *,
    neighbours: Neighbours = "add-remove",
    method: Method = "best",
) -> float:
    """The smallest noise, to 1e-3 and rounded up, at which `events_at(noise)` keeps epsilon.

    `events_at` must spend less the larger the noise is. The returned noise keeps epsilon: it was
    evaluated.
    """
    _check(delta, neighbours, method)
    target = check_number("epsilon", epsilon, above=0)

    def gap(exponent: float) -> float:
        """log of epsilon spent over target, bounded so that interpolation stays finite."""
        found = total_epsilon(
            merge(events_at(math.exp(exponent))), float(delta), neighbours, method
        )
        return max(-5.0, math.log(found / target) if 0 < found < math.inf else (found or -9) * 9)

    low, high = 0.0, 0.0
    below = above = gap(0.0)
    while above > 0:
        low, below, high = high, above, high + 1.0
        if high > 16:
            raise PlanError(
                f"No noise multiplier up to {math.exp(15):.0e} keeps epsilon = {target:g}: "
                "some event does not depend on the noise, or is unprotected."
            )
        above = gap(high)
    while below <= 0:
        high, above, low = low, below, low - 1.0
        if low < -16:
            return math.exp(high)  # any noise will do
        below = gap(low)
    while high - low > 9e-4:
        share = below / (below - above) if math.isfinite(below) else 0.5
        # Aim a little above the crossing, so that both ends of the bracket close in.
        middle = low + min(max(share, 0.02), 0.98) * (high - low)
        middle = min(max(middle + 3e-4, low + 2e-4), high - 2e-4)
        found = gap(middle)
        if found > 0:
            low, below = middle, found
        else:
            high, above = middle, found
    return math.exp(high)


def _surely_fits(events: tuple[Event, ...], limit: Limit) -> bool:
    """Whether these events fit by Renyi divergences alone: microseconds. True is certain."""
    epsilon, delta, neighbours = limit
    left = readable(events, neighbours)
    if not left:
        return left is not None
    rdp, failed = divergence(left, neighbours, quick=True)
    return renyi.epsilon_of(rdp, delta - failed) <= epsilon


def _quick_delta(events: tuple[Event, ...], limit: Limit, coarse: float = 4) -> float:
    """An upper bound of delta at the limit's epsilon, in milliseconds; 1 where it is far beyond.

    coarse: how many times coarser than the reported figure's grid; 0: the same grid.
    """
    epsilon, delta, neighbours = limit
    left = readable(events, neighbours)
    if not left:
        return 1.0 if left is None else 0.0
    if len(left) == 1 and isinstance(left[0], Gaussian):
        return float(losses.gaussian_profile(np.array(epsilon), left[0].noise))
    if not has_losses(left):
        rdp, failed = divergence(left, neighbours, quick=True)
        return renyi.delta_of(rdp, epsilon) + failed
    found = math.inf
    ways: list[tuple[tuple[Event, ...] | None, Neighbours]] = [(left, neighbours)]
    if neighbours == "replace-one":
        ways.append((halves(events), "add-remove"))
    for parts, relation in ways:
        if not parts or found <= delta:
            continue
        error, rough = rounding(parts), rough_epsilon(parts, relation, delta)
        if delta < max(SMALLEST_DELTA, 10 * error) or rough > 4 * epsilon + 1:
            found = min(found, 1.0)  # far beyond, or out of reach of a grid
            continue
        interval = grid(parts, rough)
        if coarse:  # powers of two: a site's distribution is found again while its counts grow
            interval = 2.0 ** math.floor(math.log2(coarse * interval))
        there, back = compose(parts, relation, interval, delta * 1e-5)
        if relation == neighbours:
            worst = max(float(one.delta(np.array(epsilon))) for one in (there, back)) + error
        else:
            worst = losses.replaced_delta(there, back, epsilon, error)
        found = min(found, worst)
    return found


def _largest(delta_at: Callable[[int], float], delta: float, low: int, high: int) -> int:
    """The largest n in [low, high) with delta_at(n) <= delta; low is taken to fit, high not to.

    log delta is nearly linear in n, so that interpolation takes a handful of evaluations.
    """
    below, above = math.log(max(delta_at(low), 1e-300) / delta), math.inf
    while high - low > 1:
        share = below / (below - above) if above < math.inf else 0.5
        margin = max(1, (high - low) // 16)
        middle = low + min(max(round(share * (high - low)), margin), high - low - margin)
        middle = min(max(middle, low + 1), high - 1)
        found = math.log(max(delta_at(middle), 1e-300) / delta)
        if found <= 0:
            low, below = middle, found
        else:
            high, above = middle, found
    return low


class _Known:
    """What is known of some kinds of events under one limit: counts that fit, counts that do not.

    Loss grows with every count, so that what fits settles everything smaller. Looking ahead in the
    same proportions makes the following rounds free: by Renyi divergences as long as they suffice,
    then once by the loss distribution, to the end. How far a site looks ahead depends on its
    events, so that not all sites of a round reach that point together.
    """

    def __init__(self, kinds: tuple[Event, ...], limit: Limit) -> None:
        self.kinds, self.limit = kinds, limit
        self.fitting: list[tuple[int, ...]] = []
        self.close: list[tuple[int, ...]] = []  # do not fit by the quick bound
        self.beyond: list[tuple[int, ...]] = []  # do not fit
        spread = crc32(repr(kinds).encode()) % 1000 / 1000
        self.ahead = (1.3 + 1.2 * spread, 1.05 + 0.4 * spread)

    def fits(self, counts: tuple[int, ...]) -> bool:
        """Whether these counts, one per kind, stay within the limit."""
        if any(_all_at_most(counts, known) for known in self.fitting):
            return True
        if any(_all_at_most(known, counts) for known in self.beyond):
            return False
        for ahead in self.ahead:
            target = tuple(min(math.ceil(count * ahead), MOST_COUNT) for count in counts)
            if _surely_fits(self._events(target), self.limit):
                self.fitting = [target, *self.fitting[:7]]
                return True
        if any(_all_at_most(known, counts) for known in self.close):
            return self._settle(counts)
        delta = self.limit[1]
        largest = max(counts)

        def scaled(n: int) -> tuple[int, ...]:
            """All counts in proportion, when the largest is n."""
            return tuple(-(-count * n // largest) for count in counts)

        def delta_at(n: int) -> float:
            return _quick_delta(self._events(scaled(n)), self.limit)

        if delta_at(largest) > delta:
            return self._settle(counts)
        most = min(2 * largest, MOST_COUNT)
        if delta_at(most) > delta:
            most = _largest(delta_at, delta, largest, most)
            self.close = [scaled(most + 1), *self.close[:7]]
        self.fitting = [scaled(most), *self.fitting[:7]]
        return True

    def _settle(self, counts: tuple[int, ...]) -> bool:
        """The answer on the grid that `epsilon` uses, so that both say the same."""
        events = self._events(counts)
        epsilon, delta, neighbours = self.limit
        reach = max(SMALLEST_DELTA, 10 * rounding(events))  # of a grid
        if delta < reach or not has_losses(events):
            fits = total_epsilon(events, delta, neighbours, "best") <= epsilon
        else:
            quick = _quick_delta(events, self.limit, coarse=0)
            fits = quick <= delta or _surely_fits(events, self.limit)
        known = self.fitting if fits else self.beyond
        known.insert(0, counts)
        del known[8:]
        return fits

    def _events(self, counts: tuple[int, ...]) -> tuple[Event, ...]:
        return tuple(kind.counted(n) for kind, n in zip(self.kinds, counts) if n)


def _all_at_most(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return all(a <= b for a, b in zip(small, large))


@lru_cache(maxsize=16384)
def _known(kinds: tuple[Event, ...], limit: Limit) -> _Known:
    return _Known(kinds, limit)


def _limit(epsilon: float, delta: float, neighbours: Neighbours) -> Limit:
    _check(delta, neighbours, "best")
    return check_number("epsilon", epsilon, above=0), float(delta), neighbours


def within(
    events: Sequence[Event],
    epsilon: float,
    delta: float,
    *,
    neighbours: Neighbours = "add-remove",
) -> bool:
    """Whether all events together keep (epsilon, delta): the check to make before every charge.

    The same as `epsilon(events, delta) <= epsilon` up to rounding, but quick: answers are
    remembered and settle smaller counts too, so that hundreds of sites with rates of their own
    cost milliseconds in most rounds. True is certain.
    """
    limit = _limit(epsilon, delta, neighbours)
    merged = merge(events)
    kinds = tuple(event.counted(1) for event in merged)
    return _known(kinds, limit).fits(tuple(event.count for event in merged))


@lru_cache(maxsize=16384)
def _steps_within(one: SampledGaussian, limit: Limit, spent: tuple[Event, ...]) -> int:
    def events(count: int) -> tuple[Event, ...]:
        return merge((*spent, one.counted(count)))

    def delta_at(count: int) -> float:
        return _quick_delta(events(count), limit)

    low, high = 0, 1
    while high < _MOST_STEPS and _surely_fits(events(high), limit):
        low, high = high, 2 * high
    if low == 0 and not _surely_fits(events(0), limit) and delta_at(0) > limit[1]:
        return 0
    while high < _MOST_STEPS and delta_at(high) <= limit[1]:
        low, high = high, 2 * high
    return _MOST_STEPS if high >= _MOST_STEPS else _largest(delta_at, limit[1], low, high)


def steps_within(
    rate: float,
    noise: float,
    epsilon: float,
    delta: float,
    *,
    neighbours: Neighbours = "add-remove",
    sampling: Sampling = "poisson",
    spent: Sequence[Event] = (),
) -> int:
    """How many steps of a sampled Gaussian keep (epsilon, delta) after what is already spent.

    So many do fit; a thousandth more might, since the search uses a coarser grid. At most 10^9.
    """
    limit = _limit(epsilon, delta, neighbours)
    return _steps_within(SampledGaussian(rate, noise, 1, sampling), limit, merge(spent))
