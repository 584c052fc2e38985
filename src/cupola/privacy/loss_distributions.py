"""Privacy loss distributions of events on a grid, built from privacy profiles.

The profile of a mechanism is delta as a function of epsilon. Connecting its values at grid points
gives a distribution that dominates the mechanism ("Connect the dots", Doroshenko et al. 2022), and
dominating distributions compose (Zhu, Dong, Wang 2022). The library builds them point by point in
about half a second; the closed forms below take milliseconds, cover sampling under replace-one
with proof (the library's pair for that case is not proven to be the worst), and keep relative
accuracy in both tails. Composition is the library's.

With G(z) the profile of Gaussian noise, q the rate and z = log(1 + (exp(epsilon) - 1) / q), for
epsilon >= 0:
- add-remove, Poisson, record present against absent: q G(z); absent against present: (1 -
  exp(epsilon) (1 - q)) G(-w), w = log(1 + (exp(-epsilon) - 1) / q), zero from epsilon = -log(1 -
  q) on. Exact.
- replace-one, without replacement: at most q G2(z), G2 for twice the sensitivity (Balle, Barthe,
  Gaboardi 2018).
- replace-one, Poisson: at most q ((1 - b) G(z) + b G2(z)), b = exp(epsilon - z): the same
  argument, where the part without the record is at distance one norm bound and the part with its
  replacement at two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, logsumexp

from cupola.privacy.events import Approximate, Event, Gaussian, Neighbours, Pure, SampledGaussian

if TYPE_CHECKING:  # the library is slow to load: a second that sites without privacy would wait
    from dp_accounting.pld.pld_pmf import DensePLDPmf

Vector = NDArray[np.float64]

_CHERNOFF: Vector = np.array([0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 512])
_LONGEST = 2**24
_TAIL = 9.5  # standard deviations kept: the mass beyond, 1e-21, counts as infinite loss


def gaussian_profile(z: Vector, noise: float) -> Vector:
    """delta at epsilon = z (of either sign) of Gaussian noise, to relative accuracy."""
    upper = log_ndtr(0.5 / noise - z * noise)
    lower = z + log_ndtr(-0.5 / noise - z * noise)
    return np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0))


def _amplified(epsilon: Vector, rate: float) -> Vector:
    """log(1 + (exp(epsilon) - 1) / rate) for epsilon >= 0, without overflow."""
    small = np.log1p(np.expm1(np.minimum(epsilon, 30)) / rate)
    large = epsilon - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-epsilon))
    return np.where(epsilon < 30, small, large)


def _reach(noise: float, rate: float) -> float:
    """The epsilon beyond which the amplified profile of this noise is negligible."""
    z = 0.5 / noise**2 + _TAIL / noise
    return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + z))


def reach(event: Event) -> float:
    """The largest loss that matters of one such event under either relation."""
    if isinstance(event, Pure | Approximate):
        return event.epsilon
    assert isinstance(event, Gaussian | SampledGaussian)
    if isinstance(event, Gaussian):
        return _reach(event.noise, 1.0)
    return _reach(event.noise / 2, event.rate)


def profiles(
    event: SampledGaussian | Gaussian, neighbours: Neighbours, interval: float
) -> tuple[Vector, Vector]:
    """delta at epsilon = 0, interval, 2 * interval, ... to where it is negligible, both ways.

    Returns (record present against absent, absent against present); equal under replace-one.
    """
    rate = event.rate if isinstance(event, SampledGaussian) else 1.0
    noise = event.noise
    replaced = neighbours == "replace-one" and isinstance(event, SampledGaussian)
    reach = _reach(noise / 2 if replaced else noise, rate)
    epsilon: Vector = np.arange(math.ceil(reach / interval) + 2, dtype=np.float64) * interval
    z = _amplified(epsilon, rate)
    if replaced:
        far = gaussian_profile(z, noise / 2)
        if event.sampling == "poisson":  # type: ignore[union-attr]
            share = np.exp(epsilon - z)
            far = (1 - share) * gaussian_profile(z, noise) + share * far
        return rate * far, rate * far
    forward = rate * gaussian_profile(z, noise)
    if rate == 1:
        return forward, forward
    floor = math.expm1(-0.5 / noise**2 - _TAIL / noise)
    points = math.ceil(-math.log1p(rate * floor) / interval) + 2
    back = np.arange(points) * interval
    left = rate + np.expm1(-back)  # exp(-epsilon) - (1 - rate): nothing beyond where it vanishes
    inside = left > 0
    w = np.log(np.where(inside, left, 1) / rate)
    value = np.exp(back) * left * gaussian_profile(-w, noise)
    return forward, np.where(inside, value, 0.0)


@dataclass(frozen=True, eq=False)
class Distribution:
    """Masses at losses (lower + i) * interval, and at infinite loss; they may add up to above 1."""

    interval: float
    lower: int
    mass: Vector
    infinity: float

    def library(self) -> DensePLDPmf:
        """As the library's object, which composes and inverts."""
        from dp_accounting.pld.pld_pmf import DensePLDPmf

        return DensePLDPmf(self.interval, self.lower, self.mass, self.infinity, True)

    def folded(self, size: int) -> Vector:
        """The masses modulo `size`: what a cyclic convolution of that length sees."""
        short = len(self.mass) % size
        if len(self.mass) <= size:
            return self.mass
        padded = np.pad(self.mass, (0, size - short if short else 0))
        return padded.reshape(-1, size).sum(axis=0)

    @cached_property
    def moments(self) -> tuple[Vector, Vector]:
        """Upper bounds of log E exp(t * loss) and log E exp(-t * loss) at t in `_CHERNOFF`."""
        width = 16  # neighbouring losses taken together, at their worst
        starts = np.arange(0, len(self.mass), width)
        with np.errstate(divide="ignore"):
            logs = np.log(np.add.reduceat(self.mass, starts))
        low = (self.lower + starts) * self.interval
        high = low + (width - 1) * self.interval
        rows = _CHERNOFF[:, None]
        return logsumexp(logs + rows * high, axis=1), logsumexp(logs - rows * low, axis=1)


def _connect(forward: Vector, backward: Vector, interval: float) -> Distribution:
    """The dominating distribution on the grid, from the profiles of both directions.

    Below zero, delta(-epsilon) = 1 - exp(-epsilon) + exp(-epsilon) * backward(epsilon). The first
    two terms are linear in exp(epsilon) and cancel in every mass; leaving them out keeps small
    masses accurate. Negative masses (rounding, or a bound that is not convex) become zero, which
    only adds loss.
    """
    forward = np.maximum.accumulate(forward[::-1])[::-1]
    backward = np.maximum.accumulate(backward[::-1])[::-1]
    step, grow = math.expm1(interval), math.exp(interval)
    below = np.exp(-interval * np.arange(len(backward))) * backward
    rise = np.diff(forward)
    mass = np.zeros(len(forward) + len(backward) - 1)
    zero = len(backward) - 1
    mass[zero + 1 : -1] = (rise[1:] - grow * rise[:-1]) / step
    mass[-1] = -rise[-1] * grow / step
    before = below[1] - math.expm1(-interval) - forward[0]  # delta at -interval minus delta at 0
    mass[zero] = (rise[0] + grow * before) / step
    fall = -np.diff(below)[
        ::-1
    ]  # delta grows by this from one point to the next, linear terms left out
    mass[1:zero] = (fall[1:] - grow * fall[:-1]) / step
    mass[0] = fall[0] / step - below[-1]
    return Distribution(interval, -zero, np.maximum(mass, 0), float(forward[-1]))


@dataclass(frozen=True)
class Loss:
    """The loss of one event, for a record present against absent and the other way."""

    forward: Distribution
    backward: Distribution  # the same object where both ways are equal


def _pure(epsilon: float, delta: float, interval: float) -> Distribution:
    """Randomised response that fails with probability delta: the worst of its kind."""
    at = np.arange(math.ceil(epsilon / interval) + 2) * interval
    kept = np.maximum(0, -np.expm1(np.minimum(at - epsilon, 0))) / (1 + math.exp(-epsilon))
    profile = (1 - delta) * kept + delta
    return _connect(profile, profile, interval)


@lru_cache(maxsize=64)
def loss(event: Event, neighbours: Neighbours, interval: float) -> Loss:
    """The loss of one such event on the grid of this interval, under this relation."""
    if isinstance(event, Pure | Approximate):
        one = _pure(event.epsilon, getattr(event, "delta", 0.0), interval)
        return Loss(one, one)
    assert isinstance(event, Gaussian | SampledGaussian)
    there, back = profiles(event, neighbours, interval)
    forward = _connect(there, back, interval)
    return Loss(forward, forward if there is back else _connect(back, there, interval))


def _power(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """spectrum ** count; terms below 1e-26, far under rounding, are zero (there are many)."""
    result = np.zeros_like(spectrum)
    kept = np.flatnonzero(np.abs(spectrum) > math.exp(-60 / count))
    base, power, left = spectrum[kept], np.ones(len(kept), dtype=complex), count
    while left:
        if left & 1:
            power *= base
        base, left = base * base, left >> 1
    result[kept] = power
    return result


@dataclass(frozen=True, eq=False)
class Composed:
    """Masses at losses (first + i) * interval after composition; infinity: the rest."""

    interval: float
    first: int
    mass: Vector
    infinity: float

    @cached_property
    def _tails(self) -> tuple[Vector, Vector]:
        """Sums from each point up: of the masses, and of the masses times exp(-loss)."""
        loss = (self.first + np.arange(len(self.mass))) * self.interval
        weighted = self.mass * np.exp(-np.clip(loss, -700, 700))
        upper, lower = (np.cumsum(part[::-1])[::-1] for part in (self.mass, weighted))
        return np.append(upper, 0.0), np.append(lower, 0.0)

    def delta(self, epsilon: Vector) -> Vector:
        """delta at these epsilons (at least 0, any shape)."""
        upper, lower = self._tails
        above = np.floor(epsilon / self.interval) - self.first + 1
        at = np.clip(above, 0, len(self.mass)).astype(int)
        found = upper[at] - np.exp(np.minimum(epsilon, 700)) * lower[at]
        return np.maximum(found, 0) + self.infinity


def compose(parts: Sequence[tuple[Distribution, int]], negligible: float = 1e-13) -> Composed:
    """Distributions of one interval, each repeated, by one Fourier transform.

    Its window holds all but `negligible` of the mass: what lies above counts as infinite loss, and
    what lies below appears inside, at a larger loss. Both make it an upper bound.
    """
    interval = parts[0][0].interval
    up = sum(count * part.moments[0] for part, count in parts)
    down = sum(count * part.moments[1] for part, count in parts)
    top = float(np.min((up - math.log(negligible)) / _CHERNOFF))
    bottom = -float(np.min((down - math.log(negligible)) / _CHERNOFF))
    first = math.floor(bottom / interval)
    points = max(math.ceil(top / interval) - first + 1, 2)
    if points > _LONGEST:  # not worth its memory: everything may be lost
        return Composed(interval, 0, np.zeros(1), 1.0)
    size = next_fast_len(points, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=complex)
    lower, finite = 0, 0.0
    for part, count in parts:
        spectrum *= _power(rfft(part.folded(size), size), count)
        lower += count * part.lower
        finite += count * math.log1p(-part.infinity)
    mass = np.roll(irfft(spectrum, size), (lower - first) % size)
    return Composed(interval, first, mass, negligible - math.expm1(finite))


_SHARES: Vector = np.linspace(0.1, 0.6, 26)


def replaced_delta(forward: Composed, backward: Composed, epsilon: float, error: float) -> float:
    """delta for a replacement: a removal (epsilon1) and an addition (epsilon2) that share epsilon.

    delta <= delta1 + exp(epsilon1) delta2 for every split; the best of some is taken. error is
    added to either delta, for rounding.
    """
    second = _SHARES * epsilon
    grown = np.exp(np.minimum(epsilon - second, 700))
    both = forward.delta(epsilon - second) + error + grown * (backward.delta(second) + error)
    return float(np.min(both))
