"""Random numbers for privacy, and noise that floating point cannot betray.

A real site (or coordinator) draws from the operating system, through AES-256 in counter mode under
a key that is forgotten; no argument can seed it. A simulation draws from (seed, purpose, round,
site), so that it can be repeated; its epsilon is not valid for release.

Added noise leaves traces in the low bits of floating-point numbers (Mironov 2012). `add_noise`
therefore rounds value and noise to a common grid. As the value lies on the grid, its sum with the
rounded noise is the rounded sum with the exact noise: post-processing of the Gaussian mechanism.

For that the rounded noise must be that of an *exact* normal number. A computed one is off by its
last bits, and now and then on the other side of the middle between two points of the grid. The
operating system's source sees these cases (some 30 in a million) and decides each by many digits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtri

from cupola.base.randomness import generator

GRID_BITS = 30  # the grid is this many bits finer than the noise's standard deviation
_PIECE = 1 << 18  # numbers per request to the cipher; bounds memory
#: Of a computed normal number x, over 1 + |x|: ndtri's own error (measured below 2^-51 |x|), and
#: that of the probability, 2^-53 of it, which is worth at most 1.3 2^-53. With 8 to spare.
_ERROR = 2.0**-48


class Source(Protocol):
    """Where the random numbers of a mechanism come from."""

    def uniforms(self, n: int) -> np.ndarray:
        """n numbers, uniform in [0, 1), float64."""

    def normals(self, n: int) -> np.ndarray:
        """n numbers from N(0, 1), float64."""

    def rounded_normals(self, n: int, deviation: float) -> np.ndarray:
        """n numbers from N(0, deviation^2), rounded to whole ones, float64."""

    def words(self, n: int) -> np.ndarray:
        """n times 64 bits, uint64."""


class OperatingSystem:
    """Randomness that nobody can repeat: AES-256-CTR under a fresh key from the system.

    Normal numbers are the inverse of the distribution function at a uniform number with 53 bits
    below its leading one, also where it is tiny: so that in the tails, too, every point of the grid
    can come up, whatever the value under it was.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16)))
        self._stream, self._process = cipher.encryptor(), os.getpid()

    def _words(self, n: int) -> np.ndarray:
        """n integers, uniform in [0, 2^53)."""
        return self.words(n) >> np.uint64(11)

    def words(self, n: int) -> np.ndarray:
        if self._process != os.getpid():  # a child by fork would draw what its parent draws
            self._begin()
        data = self._stream.update(bytes(8 * n))
        return np.frombuffer(data, "<u8")

    def uniforms(self, n: int) -> np.ndarray:
        return self._words(n) * 2.0**-53

    def normals(self, n: int) -> np.ndarray:
        return np.concatenate([np.empty(0), *(number for number, *_ in self._pieces(n))])

    def rounded_normals(self, n: int, deviation: float) -> np.ndarray:
        """Exactly the law of round(X) for X from N(0, deviation^2), but for 2^-100."""
        rounded = [np.empty(0)]
        for number, low, place, finer in self._pieces(n):
            scaled = number * deviation
            whole = np.rint(scaled)
            room = deviation * _ERROR * (1 + np.abs(number))  # how wrong `scaled` may be
            for i in np.flatnonzero(np.abs(scaled - whole) >= 0.5 - room):
                edge = math.floor(scaled[i]) + 0.5  # the middle that it may be on either side of
                below = _below(int(place[i]), int(finer[i]), bool(low[i]), edge, deviation)
                whole[i] = edge - 0.5 if below else edge + 0.5
            rounded.append(whole)
        return np.concatenate(rounded)

    def _pieces(self, n: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Normal numbers, and what they came from: whether they are low, and the probability of
        a tail as an interval [p, p + 1) 2^-106 with p = place 2^53 + finer."""
        for start in range(0, n, _PIECE):
            words = self._words(min(_PIECE, n - start))
            finer = self._words(len(words))
            low = words < 2**52
            place = np.where(low, words, 2**53 - 1 - words)  # from the nearer end
            fraction = finer * 2.0**-53 + 2.0**-54  # finer steps within the interval
            tail = ndtri((place + fraction) * 2.0**-53)
            yield np.where(low, tail, -tail), low, place, finer


class Simulated:
    """Repeatable randomness for simulations: never valid for a release."""

    def __init__(self, seed: int, purpose: str, round: int, site: int = 0) -> None:
        self._generator = generator(seed, purpose, round, site)

    def uniforms(self, n: int) -> np.ndarray:
        return self._generator.random(n)

    def normals(self, n: int) -> np.ndarray:
        return self._generator.standard_normal(n)

    def rounded_normals(self, n: int, deviation: float) -> np.ndarray:
        return np.rint(self.normals(n) * deviation)

    def words(self, n: int) -> np.ndarray:
        return self._generator.bit_generator.random_raw(n)


def _below(place: int, finer: int, low: bool, edge: float, deviation: float) -> bool:
    """Whether the normal number of this tail probability is below edge / deviation."""
    from mpmath import mp, mpf

    with mp.workprec(300):
        least = (mpf(place) * 2**53 + finer) / mpf(2) ** 106
        at = mpf(edge) / mpf(deviation)  # a double is a fraction: exact, but for 300 bits
        # The interval of width 2^-106 holds the middle itself with probability below 2^-100 in all
        # of a run: then either side will do.
        return bool(least < mp.ncdf(at)) if low else not bool(least < mp.ncdf(-at))


def source(seed: int | None, purpose: str, round: int, site: int = 0) -> Source:
    """Randomness for one use: the operating system's where there is no seed."""
    return OperatingSystem() if seed is None else Simulated(seed, purpose, round, site)


def grid(deviation: float) -> float:
    """Spacing of the grid for noise of this standard deviation: a power of two."""
    return 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)


def noise_scale(sensitivity: float, noise: float, size: int) -> float:
    """Standard deviation of noise on so many numbers on the grid.

    Rounding the value can move two neighbours apart by one grid step per coordinate; a step is at
    most 2^-GRID_BITS deviations, so that this much is added.
    """
    return noise * sensitivity * (1 + 2.0**-GRID_BITS * noise * math.sqrt(size))


def add_noise(value: np.ndarray, sensitivity: float, noise: float, random: Source) -> np.ndarray:
    """value + N(0, (noise * sensitivity)^2) on a grid, in float64.

    sensitivity: L2, of the exact value. noise 0 adds nothing.
    """
    if noise == 0:
        return np.asarray(value, np.float64)
    deviation = noise_scale(sensitivity, noise, value.size)
    step = grid(deviation)
    drawn = random.rounded_normals(value.size, deviation / step)
    return _on_grid(value, drawn.reshape(value.shape), step)


def round_to_grid(value: np.ndarray, noise: np.ndarray, deviation: float) -> np.ndarray:
    """value + noise, both rounded to the grid of this standard deviation before they are added.

    Overwrites the noise.
    """
    step = grid(deviation)
    noise *= 1 / step
    return _on_grid(value, np.rint(noise, out=noise), step)


def _on_grid(value: np.ndarray, noise: np.ndarray, step: float) -> np.ndarray:
    """The value, rounded to the grid, and noise in whole steps of it."""
    scaled = np.multiply(value, 1 / step, dtype=np.float64)
    np.rint(scaled, out=scaled)
    scaled += noise
    scaled *= step
    return scaled
