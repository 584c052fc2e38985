"""Kinship of all pairs of people, compiled by numba: population counts on a bit a variant.

`relatives.slow_related` says what is computed.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from cupola.association.compiled import _ones

_TILE = 64  # people whose planes stay in the cache


def related(planes: np.ndarray, least: float) -> np.ndarray:
    """planes: (people, words, 3): heterozygous, and either homozygous call. Gives (pairs, 3)."""
    found = _related(np.ascontiguousarray(planes), least)
    return found[np.lexsort((found[:, 1], found[:, 0]))]


@njit(cache=True, nogil=True)
def _related(planes, least):
    n, words, _ = planes.shape
    room, size = np.empty((1024, 3)), 0
    for start in range(0, n, _TILE):
        stop = min(start + _TILE, n)
        for j in range(start, n):
            for i in range(start, min(stop, j)):
                kinship = _kinship(planes[i], planes[j], words)
                if kinship >= least:
                    if size == room.shape[0]:
                        more = np.empty((2 * size, 3))
                        more[:size] = room
                        room = more
                    room[size, 0] = i
                    room[size, 1] = j
                    room[size, 2] = kinship
                    size += 1
    return room[:size]


@njit(inline="always")
def _kinship(a, b, words):
    one = np.uint64(0)
    two = np.uint64(0)
    both = np.uint64(0)
    opposite = np.uint64(0)
    for w in range(words):
        called_a = a[w, 0] | a[w, 1] | a[w, 2]
        called_b = b[w, 0] | b[w, 1] | b[w, 2]
        one += _ones(a[w, 0] & called_b)
        two += _ones(b[w, 0] & called_a)
        both += _ones(a[w, 0] & b[w, 0])
        opposite += _ones((a[w, 1] & b[w, 2]) | (a[w, 2] & b[w, 1]))
    fewer = min(one, two)
    if fewer == 0:
        return -np.inf
    left = np.int64(one) + np.int64(two) - 2 * np.int64(both) + 4 * np.int64(opposite)
    return 0.5 - left / (4.0 * np.int64(fewer))
