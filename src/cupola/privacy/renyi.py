"""Renyi divergences of events at fixed orders, and what they mean as (epsilon, delta).

Two sources: `vector` takes the library's figures (the reported ones), `quick_vector` computes an
upper bound in about a millisecond for checks that run every round.
`tests/privacy/test_accounting.py` holds them together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from cupola.privacy.events import (
    Approximate,
    Concentrated,
    Event,
    Gaussian,
    Neighbours,
    Pure,
    SampledGaussian,
)

Vector = NDArray[np.float64]

ORDERS: Vector = np.array(
    [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024]
)
"""The library's default orders: the published figures were made with them."""

_WITHOUT_REPLACEMENT: Vector = np.arange(2.0, 65.0)
"""Orders for sampling without replacement, whose bound costs the square of the order."""

_INTEGERS: Vector = np.array([*range(1, 65), 80, 96, 128, 192, 256], dtype=float)


def pure_vector(epsilon: float, orders: Vector) -> Vector:
    """Randomised response, the worst of all (epsilon, 0) mechanisms."""
    high, low = -np.logaddexp(0, -epsilon), -np.logaddexp(0, epsilon)
    moments = np.logaddexp(orders * high + (1 - orders) * low, orders * low + (1 - orders) * high)
    return np.maximum(moments, 0) / (orders - 1)


def sampled_gaussian(rate: float, noise: float, orders: Vector) -> Vector:
    """Renyi divergence of one Poisson-sampled step at these orders, adding or removing a record."""
    from dp_accounting import dp_event  # slow to load, as in losses
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders)
    with quiet():
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)))
    return accountant.rdp


@contextmanager
def quiet() -> Iterator[None]:
    """Drops warnings about orders that did not converge: the library counts them as infinite."""

    def drop(record: logging.LogRecord) -> bool:
        return "failed to converge" not in str(record.msg)

    logger = logging.getLogger("absl")
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


@lru_cache(maxsize=4096)
def vector(event: Event, neighbours: Neighbours) -> Vector:
    """Renyi divergence of one such event at `ORDERS`, shape (orders,); inf where no bound is known.

    Events that hold under another relation, and those with infinite epsilon, are the caller's to
    handle.
    """
    if isinstance(event, Pure | Approximate):
        return pure_vector(event.epsilon, ORDERS)
    if isinstance(event, Gaussian):
        return ORDERS / (2 * event.noise**2)
    if isinstance(event, Concentrated):
        return event.rho * ORDERS
    assert isinstance(event, SampledGaussian)
    if neighbours == "add-remove":
        return sampled_gaussian(event.rate, event.noise, ORDERS)
    # Wang, Balle, Kasiviswanathan 2019, Theorem 27. Its proof needs only that the outputs without
    # the record, with it, and with its replacement are pairwise close, so it covers both
    # samplings. The unit is the distance between the farthest two, twice the norm bound.
    plain = 2 * ORDERS / event.noise**2
    if event.noise > 1e6:  # the library's differences vanish
        return plain
    from dp_accounting import dp_event  # slow to load, as in losses
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(_WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE)
    gaussian = dp_event.GaussianDpEvent(event.noise / 2)
    accountant.compose(dp_event.SampledWithoutReplacementDpEvent(1, event.rate, gaussian))
    moments = accountant.rdp * (_WITHOUT_REPLACEMENT - 1)
    # (order - 1) * divergence is convex and 0 at order 1: interpolation is an upper bound.
    between = np.interp(ORDERS, [1, *_WITHOUT_REPLACEMENT], [0, *moments], right=np.inf)
    return np.minimum(plain, between / (ORDERS - 1))


@lru_cache(maxsize=65536)
def quick_vector(event: Event, neighbours: Neighbours) -> Vector:
    """An upper bound of `vector`: whole orders exact, the others interpolated (convexity)."""
    if not isinstance(event, SampledGaussian):
        return vector(event, neighbours)
    if neighbours == "replace-one":
        return 2 * ORDERS / event.noise**2  # no amplification: the loss distributions know better
    rate, noise = event.rate, event.noise
    if rate in (0.0, 1.0):
        return rate * ORDERS / (2 * noise**2)
    a, k = _INTEGERS[:, None], np.arange(_INTEGERS[-1] + 1)
    with np.errstate(invalid="ignore"):
        terms = np.where(
            k <= a,
            gammaln(a + 1) - gammaln(k + 1) - gammaln(np.maximum(a - k, 0) + 1)
            + k * math.log(rate) + (a - k) * math.log1p(-rate) + k * (k - 1) / (2 * noise**2),
            -np.inf,
        )  # fmt: skip
    # The sum errs by rounding, of its first term 1 and of the next, order * rate: never downwards.
    moments = np.maximum(logsumexp(terms, axis=1), 0) + 4e-16 + 1e-12 * rate * _INTEGERS
    moments[0] = 0  # order 1
    return np.interp(ORDERS, _INTEGERS, moments, right=np.inf) / (ORDERS - 1)


def epsilon_of(rdp: Vector, delta: float) -> float:
    """The smallest epsilon at delta (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    if delta <= 0:  # below 0: more than delta is lost beside the divergences
        return 0.0 if delta == 0 and not rdp.any() else math.inf
    if np.any(delta**2 + np.expm1(-rdp) > 0):  # delta <= sqrt(1 - exp(-divergence))
        return 0.0
    values = rdp + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(np.min(values)))


def delta_of(rdp: Vector, epsilon: float) -> float:
    """The smallest delta at epsilon, by the same bounds."""
    with np.errstate(divide="ignore"):
        plain = 0.5 * np.log(-np.expm1(-rdp))
    improved = (ORDERS - 1) * (rdp - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return math.exp(min(0.0, float(np.min(np.minimum(plain, improved)))))
