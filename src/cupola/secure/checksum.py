"""Checksums that show whether a total is the sum of what the sites encoded.

The checksum of integers z is sum_j c_j z_j modulo the prime P = 2^127 - 1. It is linear: the sites'
checksums, masked like the data, add up to the total's. Integers are laid out in rows of 1024, and
the coefficient of row r, column k is u_r v_k, with u and v from the AES stream of a key that the
coordinator draws for the question and the compensator never sees.

Soundness: let somebody without the key change a total by e != 0, and its checksum by d. Some row of
e is not zero, and as |e_j| < 2^64 < P it stays so modulo P. The change goes unnoticed if
sum_r u_r (sum_k v_k e_rk) = d. The inner sum of that row is zero for at most one value of the v_k
that meets a non-zero e_rk; else one value of u_r makes the outer sum d. Coefficients are drawn as
132 bits, so that no residue has more than 33 / 2^132: a change is missed with a probability below
2^-125.
"""

from __future__ import annotations

import numpy as np

from cupola.errors import FederationError
from cupola.secure.mask_stream import P, derive, stream

COLUMNS = 1024
_WIDTH, _PIECES = 11, 12  # bits of a piece, pieces of a coefficient
_SPLIT = 2.0**27
_BLOCK = 16  # rows turned to float64 at a time: they stay in the cache
_MANY = 1 << 15  # rows added up at a time
_FEW = 32  # integers, below which the plain way is as fast


def checksum(key: bytes, name: str, integers: np.ndarray) -> int:
    """The checksum of the array `name`: signed integers of 16, 32 or 64 bits, flat.

    The same as `reference`, by products of float64 matrices whose sums are integers below 2^53, and
    so exact in any order: halves of 32 bits, pieces of 11 bits, 2^10 columns; then parts of 27
    bits, pieces of 11 bits, 2^15 rows.
    """
    if integers.ndim != 1 or integers.dtype.name not in ("int16", "int32", "int64"):
        raise FederationError("only flat arrays of 16, 32 or 64 bit integers have checksums")
    integers = np.ascontiguousarray(integers)
    if integers.size < _FEW:
        return reference(key, name, integers)
    rows = -(-integers.size // COLUMNS)
    v = _coefficients(key, name, "columns", min(integers.size, COLUMNS))
    total = 0
    for first in range(0, rows, _MANY):
        block = integers[first * COLUMNS : (first + _MANY) * COLUMNS]
        u = _coefficients(key, name, "rows", min(_MANY, rows - first), first)
        for half, by_row in enumerate(_row_sums(_halves(block), v)):
            high = np.floor(by_row / _SPLIT)
            total += _value(u.T @ (by_row - high * _SPLIT)) << 32 * half
            total += _value(u.T @ high) << 32 * half + 27
    return total % P


def reference(key: bytes, name: str, integers: np.ndarray) -> int:
    """The checksum by its definition."""
    rows = -(-integers.size // COLUMNS)
    u = _whole(_coefficients(key, name, "rows", rows))
    v = _whole(_coefficients(key, name, "columns", min(integers.size, COLUMNS)))
    terms = enumerate(integers.tolist())
    return sum(u[j // COLUMNS] * v[j % COLUMNS] * z for j, z in terms) % P


def to_bytes(residue: int) -> np.ndarray:
    """A residue as 16 bytes, little-endian, for a message."""
    return np.frombuffer(residue.to_bytes(16, "little"), np.uint8)


def from_bytes(array: np.ndarray) -> int:
    """A residue from a message, or FederationError."""
    if array.dtype != np.uint8 or array.shape != (16,):
        raise FederationError("a checksum has 16 bytes")
    residue = int.from_bytes(array.tobytes(), "little")
    if residue >= P:
        raise FederationError("a checksum is not a residue")
    return residue


def _coefficients(key: bytes, name: str, axis: str, count: int, first: int = 0) -> np.ndarray:
    """Coefficients from number `first` on: their pieces, lowest first, as float64 (count, 12)."""
    size = 2 * _PIECES  # two bytes of the stream a piece
    data = stream(derive(key, "cupola checksum 1", name, axis), size * first, size * count)
    return (np.frombuffer(data, "<u2") % 2**_WIDTH).astype(np.float64).reshape(count, _PIECES)


def _whole(coefficients: np.ndarray) -> list[int]:
    """Coefficients from their pieces."""
    return [
        sum(int(piece) << _WIDTH * i for i, piece in enumerate(line))
        for line in coefficients.tolist()
    ]


def _halves(integers: np.ndarray) -> list[np.ndarray]:
    """Parts of at most 32 bits that make up the integers: the sum of part * 2^(32 i)."""
    if integers.dtype.itemsize < 8:
        return [integers]
    little = integers.astype("<i8", copy=False)
    return [little.view("<u4")[0::2], little.view("<i4")[1::2]]


def _row_sums(halves: list[np.ndarray], v: np.ndarray) -> np.ndarray:
    """sum_k half[r, k] v[k] of every row of each half, per piece of v: (halves, rows, 12)."""
    size, columns = halves[0].size, len(v)
    rows = -(-size // COLUMNS)
    sums = np.empty((len(halves), rows, _PIECES))
    buffer = np.zeros((len(halves), min(rows, _BLOCK), columns))
    for first in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - first)
        filled = min(size - first * COLUMNS, count * columns)
        for half, flat in zip(halves, buffer.reshape(len(halves), -1)):
            flat[:filled] = half[first * COLUMNS :][:filled]
            flat[filled:] = 0.0
        np.matmul(buffer[:, :count], v, out=sums[:, first : first + count])
    return sums


def _value(pieces: np.ndarray) -> int:
    """sum of pieces[i, k] * 2^(11 (i + k)): a number of rows of 2 n places, read as rows of one
    place less, has those of one i + k below each other."""
    n = len(pieces)
    shifted = np.zeros((n, 2 * n), np.int64)
    shifted[:, :n] = pieces  # below 2^53, and so are whole; a sum of 12 is below 2^57
    alike = shifted.reshape(-1)[: n * (2 * n - 1)].reshape(n, -1).sum(axis=0)
    return sum(number << (_WIDTH * power) for power, number in enumerate(alike.tolist()))
