"""Lines of a table, compiled by numba: `%` takes a microsecond a variant, which a chi-square study
of many variants would notice.

Clear cases only: at a line with a number that is too large or too small, or whose rounding cannot
be told, the caller takes over with Python's `%`.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

TEXT = -1  # in the place of a number of digits
ROOM = 24  # bytes: more than any number with 8 digits takes
_MIDDLE = 300
_POWERS = np.array([float(f"1e{k - _MIDDLE}") for k in range(2 * _MIDDLE + 1)])
_SPACE, _NEWLINE, _MINUS, _PLUS, _POINT, _ZERO, _E = (ord(c) for c in " \n-+.0e")
_TEN = np.uint64(10)  # unsigned: dividing by it is a product
# A scaled number has been rounded twice, each time by 1e-16 of at most 1e8.
_UNSURE = 1e-7


@njit
def _spaces(count, out, at):
    for _ in range(count):
        out[at] = _SPACE
        at += 1
    return at


@njit
def _decimal(number, point, out, end):
    """Digits of an integer, the last `point` of them behind a point, up to `end`: where they
    begin."""
    at, done = end, 0
    while number > 0 or done <= point:
        if done == point and point > 0:
            at -= 1
            out[at] = _POINT
        at -= 1
        rest = number // _TEN
        out[at] = _ZERO + (number - rest * _TEN)
        number = rest
        done += 1
    return at


@njit(error_model="numpy")
def _number(v, digits, small, width, out, at):
    """v as %g prints it, or %.0f without digits: where it ends, -1 if that is not clear. small:
    zero may stand for something too small for a float."""
    size, power, point = abs(v), 0, 0
    if v != v:
        at = _spaces(width - 2, out, at)
        out[at], out[at + 1] = ord("N"), ord("A")
        return at + 2
    if (not size < 1e15 and digits == 0) or (v == 0 and (small or 1 / v < 0)):
        return -1
    number, left, scientific = np.uint64(np.rint(size)), 1, False
    if digits == 0:
        rest = number
        while rest >= 10:
            rest //= _TEN
            left += 1
    elif v != 0:
        if not 1e-290 < size < 1e290:
            return -1
        power = np.int64(np.floor(np.log10(size)))
        scaled = size * _POWERS[_MIDDLE + digits - 1 - power]
        number, top = np.uint64(np.rint(scaled)), np.uint64(_POWERS[_MIDDLE + digits])
        if number == top:
            number //= _TEN
            power += 1
        if (
            number > top
            or _TEN * number < top
            or abs(abs(scaled - np.rint(scaled)) - 0.5) < _UNSURE
        ):
            return -1
        left = digits
        while number % _TEN == 0:
            number //= _TEN
            left -= 1
        scientific = power < -4 or power >= digits
        point = left - 1 if scientific else left - 1 - power
        while point < 0:
            number *= _TEN
            point += 1
            left += 1
    length = max(left, point + 1) + (point > 0) + (v < 0)
    length += (4 + (abs(power) >= 100)) if scientific else 0
    end = begin = at + max(width, length)
    if scientific:
        begin = _decimal(np.uint64(abs(power)), 0, out, end)
        if abs(power) < 10:
            begin -= 1
            out[begin] = _ZERO
        begin -= 2
        out[begin], out[begin + 1] = _E, (_MINUS if power < 0 else _PLUS)
    begin = _decimal(number, point, out, begin)
    if v < 0:
        out[begin - 1] = _MINUS
    _spaces(width - length, out, at)
    return end


@njit(cache=True, nogil=True, error_model="numpy")
def lines(columns, numbers, texts, ends, skipped, separator, start, out):
    """Lines of the rows from `start` on, until the first that is odd: that row, and the bytes.

    columns: (columns, 4) int64: place (in `numbers`, or in `ends`), width, digits or TEXT, and
    whether zero may be too small a number. numbers: (rows, a). texts: bytes. ends: (rows + 1, b).
    """
    at = 0
    for row in range(start, len(skipped)):
        if skipped[row]:
            continue
        begin = at
        for j in range(len(columns)):
            place, width, digits = columns[j, 0], columns[j, 1], columns[j, 2]
            if digits == TEXT:
                first, end = ends[row, place], ends[row + 1, place]
                at = _spaces(width - (end - first), out, at)
                for k in range(first, end):
                    out[at] = texts[k]
                    at += 1
            else:
                at = _number(numbers[row, place], digits, columns[j, 3] != 0, width, out, at)
                if at < 0:
                    return row, begin
            out[at] = separator if j + 1 < len(columns) else _NEWLINE
            at += 1
    return len(skipped), at
