"""The shuffles of `randomness.permutations`, compiled by numba: the same, and ten times as fast."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
MOST_BITS = 20  # of a key that choose its bucket


def shuffles(
    round_keys: np.ndarray, round: int, sites: np.ndarray, sizes: np.ndarray
) -> list[np.ndarray]:
    """One shuffle of range(size) per site; round_keys (10, 2): of Philox."""
    ends = np.cumsum(sizes).tolist()
    order = np.empty(sum(ends[-1:]), np.int64)
    _compiled()(round_keys, np.uint64(round), sites.astype(np.uint64), sizes, order)
    return [order[start:end] for start, end in zip([0, *ends], ends)]


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """Compiled when first needed, and kept on disk where that is allowed."""
    from numba import njit

    return njit(nogil=True, cache=True)(_shuffle_all)


def _shuffle_all(round_keys: Any, round: Any, sites: Any, sizes: Any, order: Any) -> None:
    """Give every sample a random 32-bit key and sort by it; order (sum of sizes,) is the result.

    Keys are uniform: once they are in about as many buckets as there are keys, few are out of
    order. Equal keys keep their order, because the sample's place follows its key in one number.
    """
    largest = sizes.max() if len(sizes) else 0
    keys = np.empty(largest + 3, np.uint64)  # Philox gives four at a time
    queue = np.empty(largest, np.uint64)
    first = 0
    for k in range(len(sizes)):
        n = sizes[k]
        for block in range((n + 3) // 4):
            c0, c1 = np.uint64(block), sites[k] & LOW
            c2, c3 = round & LOW, round >> HALF
            for step in range(10):
                p0, p1 = M0 * c0, M1 * c2
                c0, c1 = (p1 >> HALF) ^ c1 ^ round_keys[step, 0], p1 & LOW
                c2, c3 = (p0 >> HALF) ^ c3 ^ round_keys[step, 1], p0 & LOW
            for i, word in enumerate((c0, c1, c2, c3)):
                keys[4 * block + i] = (word << HALF) | np.uint64(4 * block + i)

        bits = 1
        while bits < MOST_BITS and (1 << bits) < n:
            bits += 1
        shift = np.uint64(64 - bits)
        place = np.zeros((1 << bits) + 1, np.int64)  # of the next key of each bucket
        for i in range(n):
            place[(keys[i] >> shift) + np.uint64(1)] += 1
        for bucket in range(1 << bits):
            place[bucket + 1] += place[bucket]
        for i in range(n):
            bucket = keys[i] >> shift
            queue[place[bucket]] = keys[i]
            place[bucket] += 1

        for i in range(n):
            key, j = queue[i], i
            while j > 0 and queue[j - 1] > key:
                queue[j] = queue[j - 1]
                j -= 1
            queue[j] = key
        for i in range(n):
            order[first + i] = np.int64(queue[i] & LOW)
        first += n
