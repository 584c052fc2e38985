"""Noise in shares: every site adds some to its own numbers, and nobody sees a total without noise.

The mechanism (Kairouz, Liu and Steinke 2021). A site clips its update to the norm `clip`, rounds
it to a grid towards zero, adds an integer share of discrete Gaussian noise in every place, and
hands it to a masked sum. What can be seen is the sum of at least `minimum` sites; of their shares
the adversary (the coordinator, and up to `colluders` sites with it) knows those of the colluders.
So honest = minimum - colluders shares hide a site, its own among them, and each has the variance
(noise * clip)^2 / honest. More survivors bring more noise than the promise needs.

The promise, in steps of the grid, for a site whose rounded update changes by the vector a of whole
numbers (all else in the total, known or chosen by others, is a shift and further noise):

1. P(S = z) of a sum S of n shares of parameter s is exp(-z^2 / (2 n s^2)) r(z) up to a factor. For
   n = 2, completing the square leaves r(z) = a sum of exp(-(x - z/2)^2 / s^2) over the integers x,
   which by Poisson's summation lies within 1 -+ 2 q_1 of a constant, q_k = sum over j >= 1 of
   exp(-2 pi^2 s^2 j^2 k/(k+1)); share by share, log(max r / min r) <= sum_(k<n) log((1 + 2 q_k) /
   (1 - 2 q_k)) <= 5 sum_(k<n) exp(-2 pi^2 s^2 k/(k+1)) for s >= 1/2. The paper has 10 instead of
   5; `gap` takes the paper's.
2. A share is subgaussian with parameter s, so that the Renyi divergence of order alpha between S
   and S + a is at most alpha a^2 / (2 n s^2) + gap; for d places together at most
   alpha |a|^2 / (2 n s^2) + d gap. That is zCDP with rho = |a|^2 / (2 n s^2) + d gap.
3. Rounding towards zero makes no number larger: |a| <= clip / grid for a site that is there or not
   (*zeroed out*: without its update, with its share), and twice that for one that is exchanged
   for another. Hence rho = 1 / (2 noise^2) + d gap, or four times as much.

A share beyond `tail` would not fit the masked sum and is cut off there: with a probability of at
most 2^-200 anywhere in a total, which takes (1 + exp(epsilon)) 2^-200 of delta, less than `LOST`
for every epsilon up to 69.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cupola.errors import PlanError
from cupola.privacy.discrete import discrete_gaussian, exact_sigma
from cupola.privacy.events import Concentrated, Event, Unprotected
from cupola.privacy.noise import Source

ARITHMETIC = 1e-6  # room for rounding in float64: of a norm over up to 10^9 numbers, and its scale
LEAST_STEPS = 4.0  # of the grid, in the deviation of a share: the gap is below 1e-66 a place
_MOST_STEPS = 2.0**28  # finer than this gains nothing
GAP = 1e-30  # allowed for d * gap
LOST = 2.0**-100
_LOG_CUT = 200 * math.log(2)


def gap(steps: float, shares: int) -> float:
    """How far the log-ratio of two probabilities of a sum of discrete Gaussians can be from that of
    one: 10 sum_(k < shares) exp(-2 pi^2 steps^2 k/(k+1)), for steps >= 1/2."""
    k = np.arange(1, min(shares, 1 << 20), dtype=np.float64)
    found = 10 * float(np.exp(-2 * (math.pi * steps) ** 2 * k / (k + 1)).sum())
    return found * max(1.0, shares / 2**20)  # the terms fall: the first ones are the largest


def rho(sensitivity: float, steps: float, shares: int, dimension: int) -> float:
    """zCDP of a sum of so many shares, each of parameter `steps`; both in steps of the grid.

    sensitivity: L2, of the whole numbers that they are added to, in `dimension` places.
    """
    return sensitivity**2 / (2 * shares * steps**2) + dimension * gap(steps, shares)


def event(noise: float) -> Event:
    """What one masked total tells about any one of its sites, there or zeroed out."""
    if noise == 0:
        return Unprotected("a total without noise")
    return Concentrated(0.5 / noise**2 + GAP, LOST)


@dataclass(frozen=True)
class Shares:
    """How one total is noised. All parties find the same from the same numbers.

    noise: standard deviation of all honest shares together, over the clip. sites: most in a total.
    minimum: fewest. colluders: those among them that tell the adversary their shares.
    dimension: places of an update. bits: of the modulus of the masked sum.
    """

    clip: float
    noise: float
    sites: int
    minimum: int
    colluders: int
    dimension: int
    bits: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.colluders < self.minimum:
            raise PlanError(
                f"privacy.colluders = {self.colluders} leaves nobody of the sites that a total has "
                f"at least (sum.minimum = {self.minimum}): lower it, or raise sum.minimum"
            )
        if self.minimum > self.sites:
            raise PlanError(f"sum.minimum = {self.minimum}, but a total has {self.sites} sites")
        if self.noise and not self.steps >= LEAST_STEPS:
            raise PlanError(
                f"privacy.noise_multiplier = {self.noise:.3g}: a site's share would be "
                f"{self.steps:.2g} steps of the finest grid on which {self.sites} sites fit into "
                f"{self.bits} bits, at least {LEAST_STEPS:g} are needed; raise the noise "
                "multiplier or sum.bits"
            )
        assert not self.noise or self.gap * self.dimension <= GAP

    @property
    def honest(self) -> int:
        """Shares that the adversary does not know."""
        return self.minimum - self.colluders

    @property
    def sensitivity(self) -> float:
        """L2, of a rounded update."""
        return self.clip * (1 + ARITHMETIC)

    @property
    def deviation(self) -> float:
        """Of one share."""
        return self.noise * self.sensitivity / math.sqrt(self.honest)

    @cached_property
    def tail(self) -> float:
        """Beyond it no share of any site in any place, but with probability 2^-200."""
        places = 2 * max(self.dimension, 1) * self.sites
        return 1.00001 * self.deviation * math.sqrt(2 * (math.log(places) + _LOG_CUT))

    @cached_property
    def fraction(self) -> int:
        """The grid is 2^-fraction: the finest on which every total fits the modulus."""
        most = Fraction(2 ** (self.bits - 1), self.sites)
        found = math.floor(math.log2(most / Fraction(self.sensitivity + self.tail))) + 1
        if self.deviation:
            found = min(found, math.floor(math.log2(_MOST_STEPS / self.deviation)))
        else:
            found = min(found, math.floor(math.log2(_MOST_STEPS / self.sensitivity)))
        while self._limit(found) + 1 >= most:
            if self._limit(found) == 1:
                raise PlanError(f"{self.sites} sites do not fit into {self.bits} bits")
            found -= 1
        return found

    def _limit(self, fraction: int) -> int:
        return math.ceil(Fraction(self.sensitivity + self.tail) * Fraction(2) ** fraction)

    @property
    def grid(self) -> float:
        return 2.0**-self.fraction

    @property
    def limit(self) -> int:
        """The largest magnitude of a site's number, in steps."""
        return self._limit(self.fraction)

    @property
    def bound(self) -> float:
        """The largest magnitude of a number that a site answers."""
        return self.limit * self.grid

    @property
    def steps(self) -> float:
        """Deviation of one share, in steps of the grid."""
        return self.deviation / self.grid

    @property
    def gap(self) -> float:
        """Of the sum of all honest shares, in one place."""
        return gap(self.steps, self.honest)

    @property
    def rho(self) -> float:
        """zCDP of one total for a site that is there or zeroed out; inf without noise."""
        if not self.noise:
            return math.inf
        steps = float(exact_sigma(self.steps))
        return rho(self.sensitivity / self.grid, steps, self.honest, self.dimension)

    def noised(self, update: NDArray[np.floating], random: Source) -> NDArray[np.float64]:
        """A site's answer: its update, clipped and on the grid, with its share of the noise.

        update: flat, (dimension,). What is not finite counts as zero: an error would tell of it.
        The result holds multiples of the grid, exactly.
        """
        if update.shape != (self.dimension,):
            raise ValueError(f"an update of {update.shape}, agreed was ({self.dimension},)")
        steps = self._rounded(np.asarray(update, np.float64))
        if self.noise:
            steps += discrete_gaussian(self.steps, self.dimension, random)
        np.clip(steps, -self.limit, self.limit, out=steps)
        return np.ldexp(steps.astype(np.float64), -self.fraction)

    def _rounded(self, update: NDArray[np.float64]) -> NDArray[np.int64]:
        if not np.isfinite(update).all():
            return np.zeros(update.shape, np.int64)
        with np.errstate(over="ignore"):
            norm = float(np.linalg.norm(update))  # inf where squares overflow: then zero is left
        scaled = update * (min(1.0, self.clip / norm) if norm > 0 else 1.0)
        return np.trunc(np.ldexp(scaled, self.fraction)).astype(np.int64)

    def __str__(self) -> str:
        share = f"{self.deviation:.3g} ({self.steps:,.0f} steps of the grid 2^{-self.fraction})"
        if not self.noise:
            return f"no noise, on the grid 2^{-self.fraction}"
        return (
            f"every site adds discrete Gaussian noise of deviation {share}; {self.honest} of at "
            f"least {self.minimum} shares count, {self.colluders} may be known to the adversary; "
            f"gap of the sum below {max(self.dimension * self.gap, 1e-300):.0e}; numbers up to "
            f"{self.bound:.4g} in {self.bits} bits"
        )
