"""Tables at the speed of the calls, compiled by numba: numbers and texts into aligned lines.

Clear cases only: at a line with anything odd (bytes that are not printable ASCII, numbers too large
or too small, a rounding that cannot be told) the caller takes over, with the slow form in
`printing`.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from cupola.gwas.compiled import _as_bits

TEXT, WHOLE, NUMBER = 0, 1, 2
ROOM = 24  # bytes: more than any number with 8 digits takes
_POWERS = np.array([float(f"1e{k}") for k in range(309)])
_EXACT = 22  # the largest power of ten that is a float64
_LOG2 = 0.30102999566398114  # a little less than log10(2)
_NEWLINE, _SPACE, _DELETE = 10, 32, 127
_MINUS, _PLUS, _POINT, _ZERO, _E = 45, 43, 46, 48, 101
# The four digits of each number below 10,000, and how many zeros they end in.
_DIGITS = np.array([[48 + n // 10**k % 10 for k in (3, 2, 1, 0)] for n in range(10_000)], np.uint8)
_ZEROS = np.array([4 - len(f"{n:04d}".rstrip("0")) for n in range(10_000)], np.int64)


@njit(inline="always")
def _exponent(v):
    """floor(log10(v)), without a logarithm."""
    power = np.int64(np.floor(((_as_bits(v) >> 52) - 1023) * _LOG2))  # this, or one less
    if v >= (_POWERS[power + 1] if power >= -1 else 1 / _POWERS[-power - 1]):
        power += 1
    return power


@njit(inline="always")
def _lost(a, b, product):
    """What rounding took from a * b, exactly (Dekker)."""
    x, y = a * 134217729.0, b * 134217729.0
    high_a, high_b = x - (x - a), y - (y - b)
    low_a, low_b = a - high_a, b - high_b
    return ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


@njit(inline="always")
def _rounded(v, digits, power):
    """v > 0 as an integer of so many digits, halves to even, as C rounds; -1 if not sure."""
    shift = digits - 1 - power
    scaled = v * _POWERS[shift] if shift >= 0 else v / _POWERS[-shift]
    whole = np.floor(scaled)
    part = scaled - whole
    number = np.int64(whole)
    # Two roundings so far, each of 1e-16: only so close to a half can it be on the wrong side.
    if abs(part - 0.5) >= 1e-15 * _POWERS[digits]:
        return number + (part > 0.5)
    if abs(shift) > _EXACT:
        return -1
    half = whole + 0.5
    if shift >= 0:
        gap = (scaled - half) + _lost(v, _POWERS[shift], scaled)
    else:
        product = half * _POWERS[-shift]
        gap = (v - product) - _lost(half, _POWERS[-shift], product)
    if gap == 0:
        return number + number % 2
    return number + (gap > 0)


@njit(inline="always")
def _pad(at, count):
    """Spaces: they are there."""
    return at + count if count > 0 else at


@njit(inline="always")
def _put(high, low, start, stop, out, at):
    """Some of the eight digits of high * 10,000 + low."""
    for k in range(start, stop):
        out[at] = _DIGITS[high, k] if k < 4 else _DIGITS[low, k - 4]
        at += 1
    return at


@njit(inline="always")
def _missing(width, out, at):
    at = _pad(at, width - 2)
    out[at], out[at + 1] = 78, 65
    return at + 2


@njit(inline="always")
def _whole(v, width, out, at):
    """An integer as float64; where it ends, -1 if it is too large."""
    if v != v:
        return _missing(width, out, at)
    if not abs(v) < 1e15:
        return -1
    value = np.int64(np.rint(abs(v)))
    length, rest = 1, value
    while rest >= 10:
        rest //= 10
        length += 1
    negative = v < 0 and value > 0
    at = _pad(at, width - length - negative)
    if negative:
        out[at] = _MINUS
        at += 1
    end = at + length
    for place in range(end - 1, at - 1, -1):
        out[place] = _ZERO + value % 10
        value //= 10
    return end


@njit(inline="always")
def _number(v, digits, width, small, out, at):
    """v as %g prints it; where it ends, -1 if that is not clear. small: zero may stand for
    something too small for a float."""
    if v != v:
        return _missing(width, out, at)
    size = abs(v)
    negative = v < 0
    if v == 0:
        if small or 1 / v < 0:
            return -1
        at = _pad(at, width - 1)
        out[at] = _ZERO
        return at + 1
    if not 1e-290 < size < 1e290:
        return -1
    power = _exponent(size)
    number = _rounded(size, digits, power)
    top = np.int64(_POWERS[digits])
    if number == top:
        number //= 10
        power += 1
    if number * 10 < top:  # not sure, or the exponent was one too many
        return -1
    number *= np.int64(_POWERS[8 - digits])
    high, low = number // 10_000, number % 10_000
    left = 8 - _ZEROS[low] if low else 4 - _ZEROS[high]  # digits without trailing zeros
    scientific = power < -4 or power >= digits
    if scientific:
        length = left + (left > 1) + 4 + (abs(power) >= 100)
    elif power < 0:
        length = left + 1 - power
    else:
        length = left + 1 if left > power + 1 else power + 1
    at = _pad(at, width - length - negative)
    if negative:
        out[at] = _MINUS
        at += 1
    if scientific:
        at = _put(high, low, 0, 1, out, at)
        if left > 1:
            out[at] = _POINT
            at = _put(high, low, 1, left, out, at + 1)
        out[at], out[at + 1] = _E, (_MINUS if power < 0 else _PLUS)
        power = abs(power)
        at += 2
        if power >= 100:
            out[at] = _ZERO + power // 100
            at += 1
        out[at], out[at + 1] = _ZERO + power // 10 % 10, _ZERO + power % 10
        return at + 2
    if power < 0:
        out[at], out[at + 1] = _ZERO, _POINT
        at += 2
        for _ in range(-power - 1):
            out[at] = _ZERO
            at += 1
        return _put(high, low, 0, left, out, at)
    at = _put(high, low, 0, power + 1, out, at)
    if left > power + 1:
        out[at] = _POINT
        at = _put(high, low, power + 1, left, out, at + 1)
    return at


@njit(inline="always")
def _text(cells, row, first, room, width, out, at):
    """A text that ends at a zero or with its room; where it ends, -1 if it is odd."""
    length = 0
    while length < room and cells[row, first + length]:
        if not _SPACE < cells[row, first + length] < _DELETE:
            return -1
        length += 1
    at = _pad(at, width - length)
    for j in range(length):
        out[at + j] = cells[row, first + j]
    return at + length


@njit(cache=True, nogil=True, error_model="numpy")
def lines(columns, numbers, cells, skipped, separator, start, out):
    """Lines of the rows from `start` on, until the first that is odd: that row, and the bytes.

    columns: (columns, 5) int64: kind, place (in `numbers` or `cells`), width, digits or room, and
    whether zero may be too small a number. numbers: (rows, a). cells: (rows, b), bytes of texts.
    out: filled with spaces.
    """
    at = 0
    for row in range(start, numbers.shape[0]):
        if skipped[row]:
            continue
        begin = at
        for j in range(columns.shape[0]):
            if j:
                out[at] = separator
                at += 1
            kind, place, width = columns[j, 0], columns[j, 1], columns[j, 2]
            if kind == TEXT:
                at = _text(cells, row, place, columns[j, 3], width, out, at)
            elif kind == WHOLE:
                at = _whole(numbers[row, place], width, out, at)
            else:
                digits, small = columns[j, 3], columns[j, 4] != 0
                at = _number(numbers[row, place], digits, width, small, out, at)
            if at < 0:
                return row, begin
        out[at] = _NEWLINE
        at += 1
    return numbers.shape[0], at
