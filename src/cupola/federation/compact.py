"""Compact arrays: fewer bytes for small integers, and for arrays of which few numbers are sent.

*Digits*: small integers -L..L as the digits of 64-bit words to the radix R >= 2L + 1, as many as
fit. Adding words adds digits, as long as no digit's sum leaves -(R-1)/2..(R-1)/2: a sum of words,
masked or not, is the word of the sums, and nothing is carried over.

*Sparse*: k of n float32 numbers, each with its place in as many bits as n needs.

With plain sums an answer's compact arrays are opened when it arrives (`Spec.code` says how they
were made), so that totals hold what they stand for.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

Code = tuple[str, int]
DIGITS, SPARSE = "digits", "sparse"
_MOST = 2**63 - 1  # of a word


@lru_cache(maxsize=256)
def digits_per_word(radix: int) -> int:
    """How many digits a word of 64 bits holds.

    >>> digits_per_word(255), digits_per_word(121), digits_per_word(15)
    (8, 9, 16)
    """
    if radix < 3:
        raise ValueError("digits need a radix of at least 3")
    many = 1
    while (radix ** (many + 1) - 1) // 2 <= _MOST:
        many += 1
    return many


def words_for(size: int, radix: int) -> int:
    """Words that so many digits take."""
    return -(-size // digits_per_word(radix))


def to_words(digits: np.ndarray, radix: int) -> np.ndarray:
    """Whole numbers of at most (radix - 1) / 2 in magnitude, as int64 words.

    >>> words = to_words(np.array([1, -2, 2, 0, -1]), radix=13)
    >>> from_words(words + words + words, radix=13, size=5)  # three sites
    array([ 3, -6,  6,  0, -3])
    """
    many = digits_per_word(radix)
    padded = np.zeros(words_for(digits.size, radix) * many, np.int64)
    padded[: digits.size] = digits
    table, found = padded.reshape(-1, many), np.zeros(padded.size // many, np.int64)
    for place in reversed(range(many)):
        found = found * radix + table[:, place]
    return found


def from_words(words: np.ndarray, radix: int, size: int) -> np.ndarray:
    """The digits of words, or of a sum of words: int64, (size,)."""
    many, half = digits_per_word(radix), (radix - 1) // 2
    left = words.astype(np.int64)
    table = np.empty((left.size, many), np.int64)
    for place in range(many):
        table[:, place] = (left + half) % radix - half
        left = (left - table[:, place]) // radix
    return table.reshape(-1)[:size]


def to_sparse(places: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Places (increasing) and values of an array of `size` numbers, as bytes.

    >>> data = to_sparse(np.array([1, 900]), np.array([0.5, -2]), 1000)
    >>> data.size, from_sparse(data, 2, 1000).nonzero()[0]
    (11, array([  1, 900]))
    """
    width = _place_bits(size)
    bits = (places[:, None] >> np.arange(width)) & 1
    where = np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")
    return np.concatenate([where, np.asarray(values, "<f4").view(np.uint8)])


def from_sparse(data: np.ndarray, many: int, size: int) -> np.ndarray:
    """The whole array: float32, (size,). ValueError where no `to_sparse` made the bytes."""
    width = _place_bits(size)
    start = -(-many * width // 8)
    bits = np.unpackbits(data[:start], count=many * width, bitorder="little")
    places = bits.reshape(many, width).astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))
    if (np.diff(places) <= 0).any() or (many and places[-1] >= size):
        raise ValueError("places of a sparse array are not increasing, or beyond its end")
    found = np.zeros(size, np.float32)
    found[places] = np.frombuffer(data[start:].tobytes(), "<f4")
    return found


def _place_bits(size: int) -> int:
    return max(1, (size - 1).bit_length())


def sent_as(code: Code, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """Type and shape in which an array of this shape travels."""
    size, (kind, number) = math.prod(shape), code
    if kind == DIGITS:
        return np.dtype(np.int64), (words_for(size, number),)
    return np.dtype(np.uint8), (-(-number * _place_bits(size) // 8) + 4 * number,)


def opened(code: Code, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What an array that arrived stands for."""
    size, (kind, number) = math.prod(shape), code
    if kind == DIGITS:
        return from_words(array, number, size).reshape(shape)
    return from_sparse(array, number, size).reshape(shape)


def is_code(code: object, shape: tuple[int, ...]) -> bool:
    """Whether a code from elsewhere is one, for an array of this shape."""
    if not (isinstance(code, tuple) and len(code) == 2 and type(code[1]) is int):
        return False
    kind, number = code
    if kind == DIGITS:
        return 3 <= number < 2**31 and number % 2 == 1
    return kind == SPARSE and 1 <= number <= math.prod(shape)
