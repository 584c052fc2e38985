"""How events of different kinds add up: one reading of them per neighbouring relation, one figure.

Behind `accounting`, which says what the figures mean and what is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from cupola.errors import PlanError
from cupola.privacy import loss_distributions as losses
from cupola.privacy import renyi
from cupola.privacy.events import (
    Approximate,
    Concentrated,
    Event,
    Gaussian,
    Neighbours,
    Pure,
    SampledGaussian,
    Unprotected,
    merge,
)

if TYPE_CHECKING:  # slow to load, as in losses
    from dp_accounting.pld.pld_pmf import PLDPmf

Method = Literal["best", "pld", "rdp"]

SMALLEST_DELTA = 1e-10
"""Below it rounding errors of Fourier transforms could matter: loss distributions are not used."""

_LARGEST = 300.0  # epsilon beyond which a loss distribution is made only if it is small:
_POINTS = 2.0**20
# Numbers outside these ranges count as their ends, or as unprotected: never as less than they are.
_LEAST_NOISE, _MOST_NOISE, _LEAST_RATE, _MOST_EPSILON = 1e-4, 1e9, 1e-15, 1e6
_MOST_RHO = 0.5 / _LEAST_NOISE**2


def rounding(events: Sequence[Event]) -> float:
    """Allowance for the rounding errors of a composition by Fourier transform, taken off delta."""
    return 1e-12 + 4e-16 * sum(event.count for event in events)


def _readable(event: Event, neighbours: Neighbours) -> Event | None:
    """The event as it counts under this relation; None if it costs nothing."""
    if isinstance(event, Unprotected):
        return event
    if isinstance(event, SampledGaussian):
        if event.rate == 0:
            return None
        if event.noise < _LEAST_NOISE:
            return Unprotected("an answer without noise", event.count)
        noise, rate = min(event.noise, _MOST_NOISE), max(event.rate, _LEAST_RATE)
        event = replace(event, noise=noise, rate=rate)
        if event.rate == 1:  # nothing is sampled
            return _readable(Gaussian(event.noise, event.count), neighbours)
        if event.sampling == "without-replacement" and neighbours == "add-remove":
            raise PlanError(
                "Sampling without replacement draws a fixed share of a known number of records, so "
                'it has a guarantee for neighbours = "replace-one" only; choose that, or '
                'sampling = "poisson".'
            )
        return event
    assert isinstance(event, Gaussian | Concentrated | Pure | Approximate)
    if isinstance(event, Concentrated):
        if event.rho > _MOST_RHO:
            return Unprotected("an answer with next to no noise", event.count)
    elif isinstance(event, Gaussian):
        if event.noise < _LEAST_NOISE:
            return Unprotected("an answer without noise", event.count)
        event = replace(event, noise=min(event.noise, _MOST_NOISE))
    elif event.epsilon > _MOST_EPSILON:
        return Unprotected("an answer with next to no noise", event.count)
    if event.neighbours == neighbours:
        return event
    if neighbours == "add-remove":
        raise PlanError(
            f"A {event.kind} event that holds for replace-one says nothing about a record more "
            'or less; ask for neighbours = "replace-one".'
        )
    if isinstance(event, Gaussian):
        return replace(event, noise=event.noise / 2, neighbours=neighbours)
    if isinstance(event, Pure):
        return replace(event, epsilon=2 * event.epsilon, neighbours=neighbours)
    if isinstance(event, Concentrated):  # groups of two: Bun and Steinke 2016, proposition 27
        delta = min(2 * event.delta, 1 - 2**-53)
        return replace(event, rho=4 * event.rho, delta=delta, neighbours=neighbours)
    delta = event.delta * (1 + math.exp(min(event.epsilon, 700.0)))
    if delta >= 1:
        return Unprotected("an answer whose delta is no bound for a replacement", event.count)
    return replace(event, epsilon=2 * event.epsilon, delta=delta, neighbours=neighbours)


def readable(events: Sequence[Event], neighbours: Neighbours) -> tuple[Event, ...] | None:
    """Events as they count under this relation, Gaussians as one; None if epsilon is infinite."""
    found = [_readable(event, neighbours) for event in merge(events)]
    left = merge(event for event in found if event is not None)
    if any(isinstance(event, Unprotected) for event in left):
        return None
    gaussians = [event for event in left if isinstance(event, Gaussian)]
    others = tuple(event for event in left if not isinstance(event, Gaussian))
    if not gaussians:
        return others
    precision = math.fsum(event.count / event.noise**2 for event in gaussians)
    return (Gaussian(precision**-0.5, 1, neighbours), *others)


def divergence(
    events: Sequence[Event], neighbours: Neighbours, *, quick: bool = False
) -> tuple[renyi.Vector, float]:
    """Renyi divergences of all events together, and the delta that approximate ones add to it."""
    source = renyi.quick_vector if quick else renyi.vector
    total, failed = np.zeros(len(renyi.ORDERS)), 0.0
    for event in events:
        total = total + event.count * source(event.counted(1), neighbours)
        if isinstance(event, Approximate | Concentrated):
            failed += event.count * event.delta
    return total, failed


def has_losses(events: Sequence[Event]) -> bool:
    """Whether all of these have a loss distribution; zCDP has divergences alone."""
    return not any(isinstance(event, Concentrated) for event in events)


def rough_epsilon(events: Sequence[Event], neighbours: Neighbours, delta: float) -> float:
    """Epsilon to a factor of two or so: chooses the grid, bounds nothing."""
    total = np.zeros(len(renyi.ORDERS))
    for event in events:
        one = event.counted(1)
        if isinstance(one, SampledGaussian) and neighbours == "replace-one":
            one = replace(one, noise=one.noise / 2, sampling="poisson")
        total += event.count * renyi.quick_vector(one, "add-remove")
    return renyi.epsilon_of(total, delta)


def grid(events: Sequence[Event], rough: float) -> float:
    """Grid interval for an error well below a thousandth of epsilon, at most a million points."""
    steps = sum(event.count for event in events)
    rough = min(max(rough, 1e-3), _LARGEST)
    fine = min(1e-4 * rough, math.sqrt(2e-4 * rough / steps))
    reach = max(losses.reach(event.counted(1)) for event in events)
    exact = max(fine, reach / 2**19, 1e-7)
    return float(f"{exact:.1e}")  # few distinct ones, so that distributions are found again


@lru_cache(maxsize=16)
def _composed(
    events: tuple[Event, ...], neighbours: Neighbours, interval: float
) -> tuple[PLDPmf, PLDPmf]:
    """Loss of all events, for a record present against absent and absent against present."""
    from dp_accounting.pld.pld_pmf import compose_pmfs

    forward: PLDPmf | None = None
    backward: PLDPmf | None = None
    for event in events:
        one, count = losses.loss(event.counted(1), neighbours, interval), event.count
        with np.errstate(over="ignore"):  # the library tries bounds that may overflow
            there = one.forward.library().self_compose(count)
            symmetric = one.backward is one.forward
            back = there if symmetric else one.backward.library().self_compose(count)
        same = forward is backward and there is back
        forward = there if forward is None else compose_pmfs(forward, there, 1e-15)
        backward = (
            forward if same else back if backward is None else compose_pmfs(backward, back, 1e-15)
        )
    assert forward is not None
    assert backward is not None
    return forward, backward


def _resolvable(
    events: tuple[Event, ...], neighbours: Neighbours, delta: float
) -> tuple[PLDPmf, PLDPmf] | None:
    """The composed loss on a fitting grid, or None where a grid cannot resolve it."""
    rough = rough_epsilon(events, neighbours, delta)
    interval = grid(events, rough)
    points = sum(event.count * losses.reach(event.counted(1)) for event in events) / interval
    if rough > _LARGEST and points > _POINTS:
        return None
    return _composed(events, neighbours, interval)


def halves(events: Sequence[Event]) -> tuple[Event, ...] | None:
    """Events as they count for a record more or less, if they do; a replacement is two of those."""
    try:
        return readable(events, "add-remove")
    except PlanError:
        return None


def compose(
    events: Sequence[Event], neighbours: Neighbours, interval: float, negligible: float
) -> tuple[losses.Composed, losses.Composed]:
    """Loss of all events by one transform each way; the same object where both ways are equal."""
    parts = [(losses.loss(e.counted(1), neighbours, interval), e.count) for e in events]
    there = losses.compose([(loss.forward, count) for loss, count in parts], negligible)
    if all(loss.forward is loss.backward for loss, _ in parts):
        return there, there
    return there, losses.compose([(loss.backward, count) for loss, count in parts], negligible)


def _replaced(events: Sequence[Event], delta: float) -> Callable[[float], float] | None:
    """delta of a replacement at an epsilon, where events hold for a record more or less."""
    parts = halves(events)
    if not parts:
        return None
    rough = rough_epsilon(parts, "add-remove", delta)
    if rough > _LARGEST:
        return None
    there, back = compose(parts, "add-remove", grid(parts, rough), delta * 1e-5)
    error = rounding(parts)
    return lambda epsilon: losses.replaced_delta(there, back, epsilon, error)


def _profile(pmf: PLDPmf, rounding: float) -> Callable[[float], float]:
    """delta as a function of epsilon."""
    return lambda value: float(pmf.get_delta_for_epsilon(value)) + rounding


def _by_loss(events: Sequence[Event], delta: float, neighbours: Neighbours) -> float:
    """Epsilon by loss distributions, inf where they do not resolve it."""
    left = readable(events, neighbours)
    assert left
    if not has_losses(left):
        return math.inf
    if len(left) == 1 and isinstance(left[0], Gaussian):
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

        return float(get_epsilon_gaussian(left[0].noise, delta)) + 1e-11  # its tolerance
    best = math.inf
    if delta < max(SMALLEST_DELTA, 10 * rounding(left)):
        return best
    loss = _resolvable(left, neighbours, delta)
    if loss is not None:
        allowed = delta - rounding(left)
        best = max(float(one.get_epsilon_for_delta(allowed)) for one in loss)
    by_parts = _replaced(events, delta) if neighbours == "replace-one" else None
    if by_parts is not None:
        best = min(best, _search(lambda e: by_parts(e) <= delta, best))
    return best


def _search(fits: Callable[[float], bool], limit: float) -> float:
    """The smallest epsilon that fits, to 1e-6 and rounded up; `limit` if none below it does."""
    low, high = 0.0, 1e-3
    while not fits(high):
        low, high = high, 2 * high
        if low > min(limit, 8 * _LARGEST):
            return limit
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@lru_cache(maxsize=4096)
def total_epsilon(
    events: tuple[Event, ...], delta: float, neighbours: Neighbours, method: Method
) -> float:
    """Epsilon of merged events at delta; see `accounting.epsilon`."""
    left = readable(events, neighbours)
    if left is None:
        return math.inf
    if not left:
        return 0.0
    if method == "pld":
        return _by_loss(events, delta, neighbours)
    by_loss = _by_loss(events, delta, neighbours) if method == "best" else math.inf
    rdp, failed = divergence(left, neighbours, quick=by_loss < math.inf)
    bound = min(by_loss, renyi.epsilon_of(rdp, delta - failed))
    return min(bound, _basic_epsilon(left, delta))


def _basic_epsilon(left: Sequence[Event], delta: float) -> float:
    """The plain sum of epsilons where every event states one and the deltas fit."""
    if not all(isinstance(event, Pure | Approximate) for event in left):
        return math.inf
    failed = math.fsum(event.count * getattr(event, "delta", 0.0) for event in left)
    total = math.fsum(event.count * event.epsilon for event in left)  # type: ignore[attr-defined]
    return total if failed <= delta else math.inf


@lru_cache(maxsize=4096)
def total_delta(
    events: tuple[Event, ...], epsilon: float, neighbours: Neighbours, method: Method
) -> float:
    """delta of merged events at epsilon; see `accounting.delta`."""
    left = readable(events, neighbours)
    if left is None:
        return 1.0
    if not left:
        return 0.0
    best = 1.0
    if method != "pld":
        rdp, failed = divergence(left, neighbours, quick=method == "best" and has_losses(left))
        best = min(best, renyi.delta_of(rdp, epsilon) + failed)
    if method == "rdp" or not has_losses(left):
        return best
    if len(left) == 1 and isinstance(left[0], Gaussian):
        return float(losses.gaussian_profile(np.array(epsilon), left[0].noise))
    if rounding(left) > 1e-6:
        return best
    loss = _resolvable(left, neighbours, 1e-9)
    if loss is not None:
        best = min(best, max(_profile(one, rounding(left))(epsilon) for one in loss))
    by_parts = _replaced(events, 1e-9) if neighbours == "replace-one" else None
    return best if by_parts is None else min(best, by_parts(epsilon))
