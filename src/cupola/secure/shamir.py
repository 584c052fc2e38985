"""Shares of a secret: any `threshold` of them give it back, fewer tell nothing (Shamir, 1979).

A secret is cut into blocks of 32 bytes. Each block is the value at 0 of its own random polynomial
of degree threshold - 1 over the integers modulo a prime, and a share is the polynomials' values at
the holder's point. The coefficients come from the operating system; nothing can seed them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

from cupola.errors import FederationError

PRIME = 2**256 + 297  # the smallest that exceeds every block
BLOCK = 32  # bytes of secret
SHARE = 33  # bytes of a share, for each block


def split(secret: bytes, points: Sequence[int], threshold: int) -> list[bytes]:
    """One share per point (distinct, 1 or more), SHARE bytes for each block of the secret."""
    _check_points(points)
    if not secret or len(secret) % BLOCK or not 1 <= threshold <= len(points):
        raise FederationError("a secret of whole blocks is split for at least `threshold` holders")
    shares = [bytearray() for _ in points]
    for start in range(0, len(secret), BLOCK):
        polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
        polynomial.append(int.from_bytes(secret[start : start + BLOCK], "little"))
        for share, point in zip(shares, points, strict=True):
            share += evaluate(polynomial, point).to_bytes(SHARE, "little")
    return [bytes(share) for share in shares]


def combine(points: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """The secret, from exactly `threshold` shares and their points.

    Wrong shares give a wrong secret, or FederationError: whoever combines must know another way
    to tell (a public key, a checksum).
    """
    _check_points(points)
    sizes = {len(share) for share in shares}
    size = max(sizes, default=0)
    if len(points) != len(shares) or len(sizes) != 1 or not size or size % SHARE:
        raise FederationError("shares do not belong together")
    weights = weights_at_zero(tuple(points))
    secret = bytearray()
    for start in range(0, size, SHARE):
        values = [int.from_bytes(share[start : start + SHARE], "little") for share in shares]
        block = sum(w * v for w, v in zip(weights, values, strict=True)) % PRIME
        if max(values) >= PRIME or block >= 1 << (8 * BLOCK):
            raise FederationError("shares do not belong together")
        secret += block.to_bytes(BLOCK, "little")
    return bytes(secret)


def evaluate(polynomial: Sequence[int], point: int) -> int:
    """Value of a polynomial (highest coefficient first) modulo the prime."""
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % PRIME
    return value


@lru_cache(maxsize=4096)
def weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights: by them the values at these points add up to the value at 0."""
    weights = []
    for point in points:
        over, under = 1, 1
        for other in points:
            if other != point:
                over = over * other % PRIME
                under = under * (other - point) % PRIME
        weights.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(weights)


def _check_points(points: Sequence[int]) -> None:
    if len(set(points)) != len(points) or not all(0 < point < 2**63 for point in points):
        raise FederationError("holders of shares have distinct points from 1 on")
