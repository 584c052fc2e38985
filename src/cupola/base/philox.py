"""Philox, a counter-based generator (Salmon et al., SC 2011), and seeds of their own for purposes.

Nothing here is fit for privacy noise or masks at a real site.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

M0, M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MULTIPLIERS = np.array([[M0], [M1]], np.uint64)
_WEYL = np.array([_W0, _W1], np.uint64)
LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@lru_cache(maxsize=4096)
def key(seed: int, purpose: str) -> tuple[int, int]:
    """64-bit Philox key of (seed, purpose), mixed by numpy's SeedSequence."""
    words = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(2, np.uint32)
    return int(words[0]), int(words[1])


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 (Salmon et al., SC 2011) of counters, shape (..., 4) uint32, vectorised."""
    words = np.moveaxis(counter, -1, 0).reshape(2, 2, -1).astype(np.uint64)
    even, odd = words[:, 0].copy(), words[:, 1].copy()  # both multiplications of a round in one
    product = np.empty_like(even)
    for round_key in round_keys(key):
        np.multiply(_MULTIPLIERS, even, out=product)
        np.bitwise_xor(odd, round_key, out=even)
        np.bitwise_and(product[::-1], LOW, out=odd)
        np.right_shift(product, _SHIFT, out=product)
        np.bitwise_xor(even, product[::-1], out=even)
    mixed = np.stack([even[0], odd[0], even[1], odd[1]], axis=-1)
    return mixed.astype(np.uint32).reshape(counter.shape)


@lru_cache(maxsize=4096)
def round_keys(key: tuple[int, int]) -> np.ndarray:
    """The keys of the ten rounds, shape (10, 2, 1)."""
    steps = np.arange(10, dtype=np.uint64)[:, None]
    return ((np.array(key, np.uint64) + steps * _WEYL) & LOW)[..., None]


def derive(seed: int, purpose: str, round: int = 0, site: int = 0) -> int:
    """A 63-bit seed of its own for one (seed, purpose, round, site)."""
    # The first word that `philox` gives, in plain integers: ten times as fast for a single number.
    c0, c1, c2, c3 = 0, site & 0xFFFFFFFF, round & 0xFFFFFFFF, round >> 32
    k0, k1 = key(seed, purpose)
    for _ in range(10):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF
        c2, c3 = (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return ((c1 << 32) | c0) >> 1
