"""Random numbers for privacy, and noise that floating point cannot betray.

A real site (or coordinator) draws from the operating system, through AES-256 in counter mode under
a key that is forgotten; no argument can seed it. A simulation draws from (seed, purpose, round,
site), so that it can be repeated; its epsilon is not valid for release.

Added noise leaves traces in the low bits of floating-point numbers (Mironov 2012). `add_noise`
therefore rounds value and noise to a common grid. As the value lies on the grid, its sum with the
rounded noise is the rounded sum with the exact noise: post-processing of the Gaussian mechanism.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtri

from cupola.federation.randomness import generator

GRID_BITS = 30  # the grid is this many bits finer than the noise's standard deviation
_PIECE = 1 << 18  # numbers per request to the cipher; bounds memory


class Source(Protocol):
    """Where the random numbers of a mechanism come from."""

    def uniforms(self, n: int) -> np.ndarray:
        """n numbers, uniform in [0, 1), float64."""

    def normals(self, n: int) -> np.ndarray:
        """n numbers from N(0, 1), float64."""

    def words(self, n: int) -> np.ndarray:
        """n times 64 bits, uint64."""


class OperatingSystem:
    """Randomness that nobody can repeat: AES-256-CTR under a fresh key from the system.

    Normal numbers are the inverse of the distribution function at a uniform number with 53 bits
    below its leading one, also where it is tiny: so that in the tails, too, every point of the grid
    can come up, whatever the value under it was.
    """

    def __init__(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16)))
        self._stream = cipher.encryptor()

    def _words(self, n: int) -> np.ndarray:
        """n integers, uniform in [0, 2^53)."""
        return self.words(n) >> np.uint64(11)

    def words(self, n: int) -> np.ndarray:
        data = self._stream.update(bytes(8 * n))
        return np.frombuffer(data, "<u8")

    def uniforms(self, n: int) -> np.ndarray:
        return self._words(n) * 2.0**-53

    def normals(self, n: int) -> np.ndarray:
        result = np.empty(n)
        for start in range(0, n, _PIECE):
            words = self._words(min(_PIECE, n - start))
            low = words < 2**52
            place = np.where(low, words, 2**53 - 1 - words)  # from the nearer end
            fraction = self.uniforms(len(words)) + 2.0**-54  # finer steps within the interval
            tail = ndtri((place + fraction) * 2.0**-53)
            result[start : start + len(words)] = np.where(low, tail, -tail)
        return result


class Simulated:
    """Repeatable randomness for simulations: never valid for a release."""

    def __init__(self, seed: int, purpose: str, round: int, site: int = 0) -> None:
        self._generator = generator(seed, purpose, round, site)

    def uniforms(self, n: int) -> np.ndarray:
        return self._generator.random(n)

    def normals(self, n: int) -> np.ndarray:
        return self._generator.standard_normal(n)

    def words(self, n: int) -> np.ndarray:
        return self._generator.bit_generator.random_raw(n)


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
    drawn = random.normals(value.size)
    drawn *= deviation
    return round_to_grid(value, drawn.reshape(value.shape), deviation)


def round_to_grid(value: np.ndarray, noise: np.ndarray, deviation: float) -> np.ndarray:
    """value + noise, both rounded to the grid of this standard deviation before they are added.

    Overwrites the noise.
    """
    step = grid(deviation)
    noise *= 1 / step
    np.rint(noise, out=noise)
    scaled = np.multiply(value, 1 / step, dtype=np.float64)
    np.rint(scaled, out=scaled)
    scaled += noise
    scaled *= step
    return scaled
