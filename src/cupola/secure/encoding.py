"""Numbers as integers modulo 2^16, 2^32 or 2^64, so that masks hide them perfectly.

A float is fixed point: the integer nearest to weight * value * 2^fraction. The fraction is the
largest for which the total of all sites fits, given the agreed bound on what one site may send;
a contribution beyond the bound is refused before it is encoded, so a total never wraps around.
Integers are exact. A total of floats errs by at most sites * 2^-fraction / 2, and what float64
itself rounds.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from cupola.errors import FederationError
from cupola.federation.message import Declined, Spec
from cupola.secure.canonical import digest, is_name, is_whole

BITS = (16, 32, 64)
KINDS = ("float", "int", "bool")
MAX_SIZE = 2**48  # values in one array
MAX_SITES = 2**31 - 1
LARGEST = 2.0**1000  # of a total
_FINEST, _COARSEST = 1000, -1000  # 2^fraction and its inverse are normal float64 numbers
_PIECE = 1 << 16  # numbers encoded at a time: they stay in the cache
Outline = tuple[tuple[str, int, int], ...]  # (name, bits, size) of each array


class OutOfRange(Declined):
    """A contribution beyond its agreed bound, or NaN; the code tells neither value nor place."""

    def __init__(self, name: str, bound: float) -> None:
        super().__init__(f"array '{name}' exceeds its agreed bound {bound:g}, or holds NaN")


@dataclass(frozen=True)
class Entry:
    """How one array of a sum is encoded.

    kind: of the array before encoding: 'float', 'int' or 'bool'. bits: the modulus is 2^bits.
    fraction: value = integer * 2^-fraction; 0 for integers. bound: the largest |weight * value|
    that one site may send. sites: how many contributions have room.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    bits: int
    fraction: int
    bound: float
    sites: int

    def __post_init__(self) -> None:
        _check_facts(self.name, self.shape, self.kind, self.bound, self.sites)
        if type(self.bits) is not int or self.bits not in BITS:
            raise FederationError(f"array '{self.name}': bits are 16, 32 or 64")
        if type(self.fraction) is not int or not _COARSEST <= self.fraction <= _FINEST:
            raise FederationError(f"array '{self.name}': the fraction is not a usable integer")
        if self.kind != "float" and self.fraction != 0:
            raise FederationError(f"array '{self.name}': integers have no fraction")
        if not _fits(self.bound, self.sites, self.bits, self.fraction):
            raise FederationError(
                f"array '{self.name}': a total of {self.sites} sites up to {self.bound:g} each "
                f"does not fit into {self.bits} bits with {self.fraction} fractional bits"
            )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"int{self.bits}")

    @property
    def error(self) -> float:
        """The most that encoding moves a total of all sites (floats; integers are exact)."""
        return 0.0 if self.kind != "float" else math.ldexp(self.sites / 2, -self.fraction)


Layout = tuple[Entry, ...]


def entry(
    name: str,
    shape: Sequence[int],
    kind: str,
    bound: float,
    sites: int,
    bits: int | None = None,
) -> Entry:
    """The encoding of one array, chosen from its bound and the number of sites.

    Integers get the smallest modulus that holds their total; floats get 64 bits, unless `bits`
    says otherwise, and the largest fraction that fits.
    """
    shape = tuple(operator.index(n) for n in shape)
    _check_facts(name, shape, kind, bound, sites)
    return _entry(name, shape, kind, float(bound), sites, bits)


@lru_cache(maxsize=4096, typed=True)
def _entry(
    name: str, shape: tuple[int, ...], kind: str, bound: float, sites: int, bits: int | None
) -> Entry:
    if kind == "float":
        bits = 64 if bits is None else bits
        fraction = _largest_fraction(name, bound, sites, bits)
        return Entry(name, shape, kind, bits, fraction, bound, sites)
    for choice in BITS if bits is None else (bits,):
        if choice in BITS and _fits(bound, sites, choice, 0):
            return Entry(name, shape, kind, choice, 0, bound, sites)
    raise FederationError(
        f"array '{name}': a total of {sites} sites up to {bound:g} each does not fit into "
        f"{bits or 64} bits; lower its bound or raise its bits"
    )


def encode(entry: Entry, array: np.ndarray, weight: float = 1.0) -> np.ndarray:
    """The integers nearest to weight * array * 2^fraction (halves to even), flat, in C order.

    Raises OutOfRange for NaN, infinity, or |weight * value| above the bound. Integers with an
    integer weight are exact; the product of a float and its weight is rounded to float64 first.
    """
    array = np.asarray(array)
    if Spec.of(array) != Spec(entry.shape, entry.kind):
        raise FederationError(
            f"array '{entry.name}' is {Spec.of(array).kind} of shape {array.shape}, "
            f"agreed was {entry.kind} of shape {entry.shape}"
        )
    if not math.isfinite(weight):
        raise OutOfRange(entry.name, entry.bound)
    flat = array.reshape(-1)
    if entry.kind == "float" or not float(weight).is_integer():
        return _encode_floats(entry, flat, float(weight))
    return _encode_integers(entry, flat, int(weight))


def decode(entry: Entry, total: np.ndarray) -> np.ndarray:
    """The total as numbers, in the array's shape: float64, or int64 for integers whose total may
    need more than the 53 bits of float64."""
    if total.dtype != entry.dtype or total.size != entry.size:
        raise FederationError(f"the total of array '{entry.name}' has another type or size")
    total = total.reshape(entry.shape)
    if entry.kind != "float" and entry.sites * Fraction(entry.bound) >= 2**53:
        return total.astype(np.int64)
    return np.asarray(total * math.ldexp(1.0, -entry.fraction))


# What parties agree on and sign


def outline(layout: Iterable[Entry]) -> Outline:
    """What a compensator must know of a layout, and a site signs: names, bits and sizes."""
    return tuple((e.name, e.bits, e.size) for e in layout)


def layout_hash(layout: Layout | Outline) -> bytes:
    """32 bytes that stand for the names, bits and sizes of a layout, in their order."""
    return digest("cupola layout 1", [_outline_of(part) for part in layout])


def scales_hash(layout: Layout) -> bytes:
    """32 bytes that stand for all of a layout, its fractions and bounds included."""
    facts = [[e.name, list(e.shape), e.kind, e.bits, e.fraction, e.bound, e.sites] for e in layout]
    return digest("cupola scales 1", json.dumps(facts).encode())


def _outline_of(part: Entry | tuple[str, int, int]) -> tuple[str, int, int]:
    return (part.name, part.bits, part.size) if isinstance(part, Entry) else part


def outline_from_json(value: Any) -> Outline:
    """An outline from another party, or FederationError."""
    try:
        parts = tuple((name, bits, size) for name, bits, size in value)
    except (TypeError, ValueError):
        raise FederationError("layout is not a list of [name, bits, size]") from None
    for name, bits, size in parts:
        if not (is_name(name) and type(bits) is int and bits in BITS and is_whole(size, MAX_SIZE)):
            raise FederationError("layout has an entry that is not [name, bits, size]")
    if len({name for name, _, _ in parts}) < len(parts):
        raise FederationError("layout names an array twice")
    return parts


# The arithmetic


def _check_facts(name: Any, shape: Any, kind: Any, bound: Any, sites: Any) -> None:
    if not is_name(name):
        raise FederationError("an array's name is 1 to 200 printable characters")
    if not all(is_whole(n, MAX_SIZE) for n in shape) or math.prod(shape) > MAX_SIZE:
        raise FederationError(f"array '{name}': its shape is not a list of usable sizes")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FederationError(f"array '{name}': kinds are {', '.join(KINDS)}")
    if not is_whole(sites, MAX_SITES) or sites < 1:
        raise FederationError(f"array '{name}': the number of sites must be at least 1")
    if not isinstance(bound, (int, float)) or not 0 <= bound <= LARGEST / sites:
        raise FederationError(f"array '{name}': its bound must be a finite number, at least 0")


def _fits(bound: float, sites: int, bits: int, fraction: int) -> bool:
    """Whether the largest total, each contribution rounded up, stays below 2^(bits-1)."""
    largest = math.floor(Fraction(bound) * Fraction(2) ** fraction + Fraction(1, 2))
    return sites * largest < 2 ** (bits - 1)


def _largest_fraction(name: str, bound: float, sites: int, bits: int) -> int:
    if type(bits) is not int or bits not in BITS:
        raise FederationError(f"array '{name}': bits are 16, 32 or 64, not {bits!r}")
    if sites >= 2 ** (bits - 1):
        raise FederationError(
            f"array '{name}': {sites} sites need more than {bits} bits; raise its bits"
        )
    fraction = min(_FINEST, bits - math.frexp(bound)[1])  # too fine by a few bits, or the finest
    while not _fits(bound, sites, bits, fraction):
        fraction -= 1
    return fraction


def _encode_floats(entry: Entry, flat: np.ndarray, weight: float) -> np.ndarray:
    result = np.empty(flat.size, entry.dtype)
    limit = math.ldexp(entry.bound, entry.fraction)
    exact = _is_exact(flat.dtype, weight, entry.fraction)
    buffer = np.empty(min(flat.size, _PIECE), np.float32 if exact else np.float64)
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE]
        scaled = buffer[: piece.size]
        with np.errstate(all="ignore"):  # what overflows is refused below
            _scale(piece, weight, entry.fraction, scaled)
        if not -limit <= float(scaled.min()) <= float(scaled.max()) <= limit:  # also for NaN
            raise OutOfRange(entry.name, entry.bound)
        np.rint(scaled, out=scaled)
        np.copyto(result[start : start + _PIECE], scaled, casting="unsafe")
    return result


def _is_exact(dtype: np.dtype, weight: float, fraction: int) -> bool:
    """Whether float32 holds weight * 2^fraction times its numbers: for powers of two."""
    mantissa, exponent = math.frexp(weight)
    return dtype == np.float32 and mantissa == 0.5 and abs(exponent + fraction) < 100


def _scale(piece: np.ndarray, weight: float, fraction: int, out: np.ndarray) -> None:
    """out = weight * piece * 2^fraction with one rounding, that of the product in float64."""
    if abs(math.frexp(weight)[1] + fraction) < 1000:
        np.multiply(piece, out.dtype.type(math.ldexp(weight, fraction)), out=out)
    else:  # the factor alone may be too large or too small for a number
        np.ldexp(np.multiply(piece, weight, dtype=np.float64), fraction, out=out)


def _encode_integers(entry: Entry, flat: np.ndarray, weight: int) -> np.ndarray:
    if flat.size:
        largest = max(abs(int(flat.max())), abs(int(flat.min())))
        if largest * abs(weight) > entry.bound:
            raise OutOfRange(entry.name, entry.bound)
        if largest == 0:
            weight = 0  # whatever it was, it may not fit the type
    result = flat.astype(entry.dtype)
    result *= entry.dtype.type(weight)
    return result
