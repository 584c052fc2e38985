"""Randomised Hadamard rotation: random signs, then the Walsh-Hadamard transform.

It spreads every vector evenly: whatever an update was, its rotated numbers look alike, nearly
Gaussian with the deviation |x| / sqrt(n), so that one range and one grid serve all of them (Suresh,
Yu, Kumar and McMahan 2017). It keeps lengths, and the sum of rotated vectors is the rotated sum:
the coordinator turns back once, whatever the number of sites.

Vectors of any length are rotated without padding: by three blocks of the largest power of two that
fits, at the beginning, the end and in between, each with signs of its own. n log n additions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cupola.base.randomness import generator

Vector = NDArray[np.float64]


def rotate(vector: Vector, seed: int) -> Vector:
    """The vector, rotated.

    >>> x = np.array([3.0, 0.0, 0.0, 4.0, 0.0])
    >>> y = rotate(x, seed=7)
    >>> float(np.linalg.norm(y).round(12)), unrotate(y, seed=7).round(12).tolist()
    (5.0, [3.0, 0.0, 0.0, 4.0, 0.0])
    """
    found = vector.astype(np.float64)
    for block, signs in _turns(found, seed):
        block *= signs
        _hadamard(block)
    return found


def unrotate(vector: Vector, seed: int) -> Vector:
    """The vector whose rotation this is."""
    found = vector.astype(np.float64)
    for block, signs in reversed(_turns(found, seed)):
        _hadamard(block)
        block *= signs
    return found


def _turns(vector: Vector, seed: int) -> list[tuple[Vector, Vector]]:
    """Views of the blocks that are rotated one after another, and their signs."""
    size = vector.size
    if size == 0:
        return []
    width = 1 << (size.bit_length() - 1)
    random = generator(seed, "signs")
    starts = [0] if width == size else [0, size - width, (size - width) // 2]
    return [(vector[start : start + width], _signs(random, width)) for start in starts]


def _signs(random: np.random.Generator, size: int) -> Vector:
    bits = np.frombuffer(random.bytes(-(-size // 8)), np.uint8)
    return 1.0 - 2.0 * np.unpackbits(bits, count=size).astype(np.float64)


def _hadamard(block: Vector) -> None:
    """The Walsh-Hadamard transform, in place; its own inverse. Additions in a fixed order, so that
    every machine finds the same bits. The lower half of an index's bits is done on the transposed
    table: all runs of numbers are long, then."""
    columns = 1 << (block.size.bit_length() // 2)
    table = block.reshape(-1, columns)
    _butterflies(table)
    turned = table.T.copy()
    _butterflies(turned)
    table[...] = turned.T
    block *= block.size**-0.5


def _butterflies(table: Vector) -> None:
    """The transform of every column, in place, not scaled."""
    rows, columns = table.shape
    half = 1
    while half < rows:
        pairs = table.reshape(-1, 2, half * columns)
        low, high = pairs[:, 0], pairs[:, 1]
        difference = low - high
        low += high
        high[...] = difference
        half *= 2
