"""Checksums that show whether a total is the sum of what the sites encoded.

The checksum of integers z is sum_j c_j z_j modulo the prime P = 2^127 - 1. It is linear: the sites'
checksums, masked like the data, add up to the total's. Integers are laid out in rows of 1024, and
the coefficient of row r, column k is u_r v_k, with u and v from the AES stream of a key that the
coordinator draws for the question and the compensator never sees.

Soundness: let somebody without the key change a total by e != 0, and its checksum by d. Some row of
e is not zero, and as |e_j| < 2^64 < P it stays so modulo P. The change goes unnoticed if
sum_r u_r (sum_k v_k e_rk) = d. The inner sum of that row is zero for at most one value of the v_k
that meets a non-zero e_rk; else one value of u_r makes the outer sum d. Residues are drawn as 127
bits, so that no residue has more than 2^-126: a change is missed with probability below 2^-125.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from cupola.errors import FederationError
from cupola.secure.streams import P, derive, stream

COLUMNS = 1024
_WIDTH, _PIECES = 11, 12  # a residue is 12 pieces of 11 bits
_SPLIT = 2.0**27
_BLOCK = 64  # rows turned to float64 at a time: they stay in the cache
_MANY = 1 << 15  # rows added up at a time
_FEW = 256  # integers, below which the plain way is as fast


def checksum(key: bytes, name: str, integers: np.ndarray) -> int:
    """The checksum of the array `name`: signed integers of 16, 32 or 64 bits, flat.

    The same as `reference`, by products of float64 matrices whose sums are integers below 2^53, and
    so exact in any order: halves of 32 bits, pieces of 11 bits, 2^10 columns; then parts of 27
    bits, pieces of 11 bits, 2^15 rows.
    """
    if integers.ndim != 1 or integers.dtype.name not in ("int16", "int32", "int64"):
        raise FederationError("only flat arrays of 16, 32 or 64 bit integers have checksums")
    if integers.size < _FEW:
        return reference(key, name, integers)
    rows = -(-integers.size // COLUMNS)
    v = _pieces(_residues(key, name, "columns", min(integers.size, COLUMNS)))
    total = 0
    for first in range(0, rows, _MANY):
        block = integers[first * COLUMNS : (first + _MANY) * COLUMNS]
        u = _pieces(_residues(key, name, "rows", min(_MANY, rows - first), first)).T.contiguous()
        for exponent, half in _halves(block):
            by_row = _row_sums(half, v)
            high = torch.floor(by_row / _SPLIT)
            low = by_row - high * _SPLIT
            total += _value(u @ low) << exponent
            total += _value(u @ high) << (exponent + 27)
    return total % P


def reference(key: bytes, name: str, integers: np.ndarray) -> int:
    """The checksum by its definition."""
    rows = -(-integers.size // COLUMNS)
    u = _residues(key, name, "rows", rows)
    v = _residues(key, name, "columns", min(integers.size, COLUMNS))
    whole = [int.from_bytes(c, "little") for c in u], [int.from_bytes(c, "little") for c in v]
    return (
        sum(
            whole[0][j // COLUMNS] * whole[1][j % COLUMNS] * z
            for j, z in enumerate(integers.tolist())
        )
        % P
    )


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


def _residues(key: bytes, name: str, axis: str, count: int, first: int = 0) -> np.ndarray:
    """`count` coefficients from number `first` on, as bytes (count, 16), below 2^127."""
    data = stream(derive(key, "cupola checksum 1", name, axis), 16 * first, 16 * count)
    found = np.frombuffer(data, np.uint8).reshape(count, 16).copy()
    found[:, 15] &= 0x7F
    return found


def _pieces(residues: np.ndarray) -> torch.Tensor:
    """Residues in pieces of 11 bits, lowest first: float64 (count, 12)."""
    bits = np.unpackbits(residues, axis=1, count=_WIDTH * _PIECES, bitorder="little")
    powers = 2.0 ** np.arange(_WIDTH)
    return torch.from_numpy(bits.reshape(-1, _PIECES, _WIDTH) @ powers)


def _halves(integers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Parts of at most 32 bits that make up the integers: sum of part * 2^exponent."""
    if integers.dtype.itemsize < 8:
        yield 0, integers
    else:
        little = integers.astype("<i8", copy=False)
        yield 0, little.view("<u4")[0::2]
        yield 32, little.view("<i4")[1::2]


def _row_sums(half: np.ndarray, v: torch.Tensor) -> torch.Tensor:
    """sum_k half[r, k] v[k] of every row, per piece of v: float64 (rows, 12)."""
    rows, columns = -(-half.size // COLUMNS), len(v)
    sums = torch.empty(rows, _PIECES, dtype=torch.float64)
    buffer = np.zeros((min(rows, _BLOCK), columns))
    for first in range(0, rows, _BLOCK):
        part = half[first * COLUMNS : (first + _BLOCK) * COLUMNS]
        flat = buffer.reshape(-1)
        flat[: part.size] = part
        flat[part.size :] = 0.0
        count = min(_BLOCK, rows - first)
        torch.matmul(torch.from_numpy(buffer[:count]), v, out=sums[first : first + count])
    return sums


def _value(pieces: torch.Tensor) -> int:
    """sum of pieces[i, k] * 2^(11 (i + k))."""
    return sum(
        int(number) << (_WIDTH * (i + k))
        for i, line in enumerate(pieces.tolist())
        for k, number in enumerate(line)
    )
