"""Masks: AES-256 in counter mode, from fresh seeds of the operating system.

A seed serves one answer of one site. Every array of it has its own key, derived by HKDF from the
seed and from what the answer is for, and the stream of that key can be read from any place. To
whoever does not know the seed, masked integers are uniform modulo 2^bits, whatever they hide.
"""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cupola.errors import FederationError
from cupola.secure.canonical import Value, pack

SEED = 32
P = 2**127 - 1  # checksums are residues modulo this prime
_BLOCK = 16  # bytes of AES
_PIECE = 1 << 18  # bytes of mask at a time: they stay in the cache
_ZEROS = bytes(_PIECE)
_TYPES = tuple(np.dtype(f"int{bits}") for bits in (16, 32, 64))


def new_seed() -> bytes:
    """32 bytes of the operating system, for one answer; nothing can seed this."""
    return os.urandom(SEED)


def derive(secret: bytes, *purpose: Value, length: int = 32) -> bytes:
    """HKDF-SHA256 of a secret, for exactly this purpose."""
    return HKDF(SHA256(), length, None, pack(*purpose)).derive(secret)


def mask_key(seed: bytes, *, study: str, step: int, attempt: int, array: str) -> bytes:
    """The key of one array's mask."""
    return derive(seed, "cupola mask 1", study, step, attempt, array)


def mask_residue(key: bytes) -> int:
    """The mask of an array's checksum, from the array's key: uniform modulo P up to 2^-257."""
    return int.from_bytes(derive(key, "cupola checksum mask 1", length=48), "little") % P


def add_mask(values: np.ndarray, key: bytes, start: int = 0, sign: int = 1) -> None:
    """Add (sign 1) or take off (-1) a mask in place, modulo 2^bits of the values' type.

    values: flat integers of 16, 32 or 64 bits, of which the first is number `start` of its array.
    """
    if values.dtype not in _TYPES or values.ndim != 1 or start < 0 or sign not in (1, -1):
        raise FederationError("only flat arrays of 16, 32 or 64 bit integers can be masked")
    width = values.dtype.itemsize
    combine = np.add if sign == 1 else np.subtract
    cipher = _cipher(key, start * width)
    buffer = np.empty(min(_PIECE, values.nbytes) + _BLOCK, np.uint8)  # the cipher wants room
    for first in range(0, values.size, _PIECE // width):
        piece = values[first : first + _PIECE // width]
        cipher.update_into(_ZEROS[: piece.nbytes], buffer.data)
        combine(
            piece, buffer[: piece.nbytes].view(f"<i{width}"), out=piece
        )  # integers wrap around silently


def stream(key: bytes, start: int, size: int) -> bytes:
    """Bytes `start` to `start + size` of a key's stream."""
    return _cipher(key, start).update(bytes(size))


def _cipher(key: bytes, start: int) -> CipherContext:
    """The key's stream from byte `start` on."""
    block, skipped = divmod(start, _BLOCK)
    cipher = Cipher(algorithms.AES256(key), modes.CTR(block.to_bytes(_BLOCK, "big"))).encryptor()
    cipher.update(_ZEROS[:skipped])
    return cipher
