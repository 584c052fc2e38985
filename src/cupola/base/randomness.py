"""Counter-based randomness: every draw of a simulation is named by (seed, purpose, round, site).

So results do not depend on the engine, the order of sites, vectorisation, or a resume. Nothing here
is fit for privacy noise or masks at a real site: those come from the operating system.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MULTIPLIERS = np.array([[_M0], [_M1]], np.uint64)
_WEYL = np.array([_W0, _W1], np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_P0, _P1 = np.uint64(_M0), np.uint64(_M1)  # for compiled code
_BUCKET_BITS = 20  # of a key, at most, that choose its bucket


@lru_cache(maxsize=4096)
def _key(seed: int, purpose: str) -> tuple[int, int]:
    """64-bit Philox key of (seed, purpose), mixed by numpy's SeedSequence."""
    words = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(2, np.uint32)
    return int(words[0]), int(words[1])


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 (Salmon et al., SC 2011) of counters, shape (..., 4) uint32, vectorised."""
    words = np.moveaxis(counter, -1, 0).reshape(2, 2, -1).astype(np.uint64)
    even, odd = words[:, 0].copy(), words[:, 1].copy()  # both multiplications of a round in one
    product = np.empty_like(even)
    for round_key in _round_keys(key):
        np.multiply(_MULTIPLIERS, even, out=product)
        np.bitwise_xor(odd, round_key, out=even)
        np.bitwise_and(product[::-1], _LOW, out=odd)
        np.right_shift(product, _SHIFT, out=product)
        np.bitwise_xor(even, product[::-1], out=even)
    mixed = np.stack([even[0], odd[0], even[1], odd[1]], axis=-1)
    return mixed.astype(np.uint32).reshape(counter.shape)


@lru_cache(maxsize=4096)
def _round_keys(key: tuple[int, int]) -> np.ndarray:
    """The keys of the ten rounds, shape (10, 2, 1)."""
    steps = np.arange(10, dtype=np.uint64)[:, None]
    return ((np.array(key, np.uint64) + steps * _WEYL) & _LOW)[..., None]


def _block(seed: int, purpose: str, round: int, sites: np.ndarray, blocks: int) -> np.ndarray:
    """64-bit words, shape (sites, 2 * blocks): row i depends on site i alone."""
    counter = np.empty((len(sites), blocks, 4), np.uint32)
    counter[..., 0] = np.arange(blocks, dtype=np.uint32)
    counter[..., 1] = (sites & 0xFFFFFFFF)[:, None]
    counter[..., 2] = np.uint32(round & 0xFFFFFFFF)
    counter[..., 3] = np.uint32(round >> 32)
    return philox(counter, _key(seed, purpose)).reshape(len(sites), -1).view(np.uint64)


def derive(seed: int, purpose: str, round: int = 0, site: int = 0) -> int:
    """A 63-bit seed of its own for one (seed, purpose, round, site)."""
    # The first word of `_block`, in plain integers: ten times as fast for a single number.
    c0, c1, c2, c3 = 0, site & 0xFFFFFFFF, round & 0xFFFFFFFF, round >> 32
    k0, k1 = _key(seed, purpose)
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF
        c2, c3 = (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return ((c1 << 32) | c0) >> 1


def generator(seed: int, purpose: str, round: int = 0, site: int = 0) -> np.random.Generator:
    """numpy generator for one (seed, purpose, round, site)."""
    return np.random.Generator(np.random.Philox(key=derive(seed, purpose, round, site)))


def torch_generator(seed: int, purpose: str, round: int = 0, site: int = 0) -> torch.Generator:
    """torch generator (on the CPU) for one (seed, purpose, round, site)."""
    import torch

    return torch.Generator().manual_seed(derive(seed, purpose, round, site))


def uniforms(seed: int, purpose: str, round: int, sites: Sequence[int], n: int = 1) -> np.ndarray:
    """Uniform numbers in [0, 1), shape (sites, n); row i depends on site i alone."""
    words = _block(seed, purpose, round, np.asarray(sites, np.int64), (n + 1) // 2)[:, :n]
    return (words >> np.uint64(11)) * 2.0**-53


def permutations(
    seed: int, purpose: str, round: int, sites: Sequence[int], sizes: Sequence[int]
) -> list[np.ndarray]:
    """One shuffle of range(size) per site, all in one draw; row i depends on site i."""
    count, number = np.asarray(sizes, np.int64), np.asarray(sites, np.int64)
    if "numba" in sys.modules:  # loading it for this alone would take longer than a short run
        ends = np.cumsum(count).tolist()
        order = np.empty(sum(ends[-1:]), np.int64)
        keys = _round_keys(_key(seed, purpose))[..., 0]
        _compiled()(keys, np.uint64(round), number.astype(np.uint64), count, order)
        return [order[start:end] for start, end in zip([0, *ends], ends)]
    return _permutations(seed, purpose, round, number, count)


def _permutations(
    seed: int, purpose: str, round: int, number: np.ndarray, count: np.ndarray
) -> list[np.ndarray]:
    """The same by numpy: sites of similar size share one rectangular draw."""
    result: list[np.ndarray] = [np.empty(0, np.int64)] * len(count)
    order = np.argsort(count, kind="stable")
    # Of similar size, so that one huge site does not blow up the rectangle.
    start = 0
    while start < len(order):
        limit = 2 * max(int(count[order[start]]), 8)
        stop = int(np.searchsorted(count[order], limit, side="right"))
        rows = order[start:stop]
        size = count[rows]
        # 32-bit keys: two of n meet with probability n^2 / 2^33 and then keep their order.
        words = _block(seed, purpose, round, number[rows], (int(size.max()) + 3) // 4)
        words = words.view(np.uint32)
        if size[0] < size[-1] or words.shape[1] > size[0]:
            words[np.arange(words.shape[1]) >= size[:, None]] = 0xFFFFFFFF  # sorts last
        for row, rank in zip(rows, np.argsort(words, axis=1, kind="stable")):
            result[row] = rank[: count[row]]
        start = stop
    return result


def permutation(seed: int, purpose: str, round: int, site: int, size: int) -> np.ndarray:
    """The shuffle that `permutations` gives this site."""
    return permutations(seed, purpose, round, [site], [size])[0]


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """`_permutations` compiled by numba: the same, and ten times as fast. Compiled when first
    needed, and kept on disk where that is allowed."""
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
            c0, c1 = np.uint64(block), sites[k] & _LOW
            c2, c3 = round & _LOW, round >> _SHIFT
            for step in range(10):
                p0, p1 = _P0 * c0, _P1 * c2
                c0, c1 = (p1 >> _SHIFT) ^ c1 ^ round_keys[step, 0], p1 & _LOW
                c2, c3 = (p0 >> _SHIFT) ^ c3 ^ round_keys[step, 1], p0 & _LOW
            for i, word in enumerate((c0, c1, c2, c3)):
                keys[4 * block + i] = (word << _SHIFT) | np.uint64(4 * block + i)

        bits = 1
        while bits < _BUCKET_BITS and (1 << bits) < n:
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
            order[first + i] = np.int64(queue[i] & _LOW)
        first += n
