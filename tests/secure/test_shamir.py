"""Shares of secrets: any threshold of them gives it back, fewer fit every secret."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.errors import FederationError
from cupola.secure.shamir import BLOCK, PRIME, SHARE, combine, evaluate, split, weights_at_zero


def is_prime(n):
    """Fermat to many bases; enough for a number that nobody chose to deceive."""
    return all(pow(base, n - 1, n) == 1 for base in range(2, 60))


def test_the_field_is_the_smallest_that_holds_a_block():
    assert is_prime(PRIME)
    assert not any(is_prime(n) for n in range(2**256, PRIME))
    assert PRIME < 2 ** (8 * SHARE)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    secret=st.integers(1, 3).flatmap(lambda n: st.binary(min_size=n * BLOCK, max_size=n * BLOCK)),
    points=st.lists(st.integers(1, 2**31), min_size=1, max_size=12, unique=True),
    data=st.data(),
)
def test_any_threshold_of_shares_gives_the_secret_back(secret, points, data):
    threshold = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, split(secret, points, threshold), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert combine(chosen, [shares[point] for point in chosen]) == secret
    assert {len(share) for share in shares.values()} == {len(secret) // BLOCK * SHARE}


def test_extreme_blocks():
    for secret in (bytes(32), b"\xff" * 32):
        shares = split(secret, [1, 2, 3], 2)
        assert combine([3, 1], [shares[2], shares[0]]) == secret


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True))
def test_weights_are_lagranges(points):
    """Against the definition in fractions."""
    for point, weight in zip(points, weights_at_zero(tuple(points)), strict=True):
        exact = Fraction(1)
        for other in points:
            if other != point:
                exact *= Fraction(other, other - point)
        assert weight == exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def test_fewer_shares_fit_every_secret():
    points, threshold = [1, 2, 5, 9], 3
    shares = split(b"s" * 32, points, threshold)
    known = {point: int.from_bytes(share, "little") for point, share in zip(points, shares)}
    for guess in (0, 1, 2**255 + 11):
        # The polynomial through two shares and any guess exists, so two shares rule nothing out.
        through = {0: guess, 1: known[1], 2: known[2]}
        third = _interpolate(through, 5).to_bytes(SHARE, "little")
        assert combine([1, 2, 5], [shares[0], shares[1], third]) == guess.to_bytes(32, "little")


def _interpolate(values, at):
    total = 0
    for x, y in values.items():
        for other in values:
            if other != x:
                y = y * (at - other) * pow(x - other, -1, PRIME)
        total += y
    return total % PRIME


def test_the_same_secret_is_shared_anew_every_time():
    assert split(bytes(32), [1, 2], 2) != split(bytes(32), [1, 2], 2)


def test_polynomials_by_powers():
    polynomial = [3, 5, 7]
    assert evaluate(polynomial, 11) == 3 * 121 + 5 * 11 + 7


def test_what_does_not_belong_together_is_refused():
    shares = split(b"s" * 64, [1, 2, 3], 2)
    for points, parts in [
        ([1, 1], shares[:2]),
        ([0, 1], shares[:2]),
        ([1, 2, 3], shares[:2]),
        ([1, 2], [shares[0], shares[1][:SHARE]]),
        ([1, 2], [b"", b""]),
        ([1, 2], [b"x" * 5, b"x" * 5]),
        ([1], [b"\xff" * SHARE]),
        ([], []),
    ]:
        with pytest.raises(FederationError):
            combine(points, parts)
    for secret, points, threshold in [
        (b"short", [1], 1),
        (b"", [1], 1),
        (bytes(32), [1, 2], 3),
        (bytes(32), [1, 2], 0),
        (bytes(32), [1, 1], 2),
        (bytes(32), [0, 1], 2),
    ]:
        with pytest.raises(FederationError):
            split(secret, points, threshold)


def test_a_wrong_share_gives_another_secret_or_none():
    shares = split(b"s" * 32, [1, 2], 2)
    changed = bytes([shares[0][0] ^ 1]) + shares[0][1:]
    with suppress(FederationError):
        assert combine([1, 2], [changed, shares[1]]) != b"s" * 32
