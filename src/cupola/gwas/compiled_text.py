"""Text at the speed of the calls, compiled by numba: fields of a file, and numbers into columns.

Clean files and clear cases only. What is odd (other bytes than printable ASCII, ragged lines,
numbers whose rounding is a close call) is left to the slow forms in `scan` and `printing`.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from cupola.gwas.compiled import _as_bits

_POWERS = np.array([float(f"1e{k}") for k in range(309)])
_LOG2 = 0.30102999566398114  # a little less than log10(2)
_NEWLINE, _RETURN, _TAB, _SPACE, _DELETE = 10, 13, 9, 32, 127
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E = 45, 43, 46, 48, 57, 101


@njit(cache=True, nogil=True)
def fields(text, starts, ends):
    """Where the fields of each line that is not empty begin and end: (lines, columns). Gives the
    number of lines; -1 if a line has another number of fields, or a byte is odd."""
    columns = starts.shape[1]
    line, column, inside = 0, 0, False
    for i in range(text.shape[0]):
        b = text[i]
        if _SPACE < b < _DELETE:
            if not inside:
                if column == columns:
                    return -1
                starts[line, column] = i
                inside = True
            continue
        if inside:
            ends[line, column] = i
            column += 1
            inside = False
        if b == _NEWLINE:
            if column:
                if column != columns:
                    return -1
                line += 1
                column = 0
        elif b == _RETURN:
            if i + 1 == text.shape[0] or text[i + 1] != _NEWLINE:
                return -1
        elif b != _SPACE and b != _TAB:
            return -1
    if inside:
        ends[line, column] = text.shape[0]
        column += 1
    if column:
        if column != columns:
            return -1
        line += 1
    return line


@njit(cache=True, nogil=True)
def letters(text, starts, ends, column, capitals, found):
    """A column's texts as code points: (lines, longest) uint32, zero where a text is shorter."""
    for i in range(found.shape[0]):
        start = starts[i, column]
        for j in range(ends[i, column] - start):
            b = text[start + j]
            if capitals and 97 <= b <= 122:
                b -= 32
            found[i, j] = b


@njit(cache=True, nogil=True)
def integers(text, starts, ends, column, found):
    """A column's decimal integers; False if one is not."""
    for i in range(found.shape[0]):
        at, end = starts[i, column], ends[i, column]
        negative = text[at] == _MINUS
        if negative:
            at += 1
        if not 0 < end - at < 19:
            return False
        value = 0
        for j in range(at, end):
            if not _ZERO <= text[j] <= _NINE:
                return False
            value = 10 * value + (text[j] - _ZERO)
        found[i] = -value if negative else value
    return True


@njit(inline="always")
def _integer(value, cells, row, at):
    """Writes value >= 0; gives where it ends."""
    end, rest = at + 1, value
    while rest >= 10:
        rest //= 10
        end += 1
    place = end
    while place > at:
        place -= 1
        cells[row, place] = _ZERO + value % 10
        value //= 10
    return end


@njit(cache=True, nogil=True)
def wholes(values, cells, lengths, at, column, first, step):
    """Integers as float64, of less than 1e15; 'NA' for NaN. Value i goes to row first + step i."""
    for i in range(values.shape[0]):
        row, v = first + step * i, values[i]
        if v != v:
            cells[row, at], cells[row, at + 1] = 78, 65
            lengths[row, column] = 2
            continue
        place = at
        whole = np.int64(np.rint(v))
        if whole < 0:
            cells[row, at] = _MINUS
            place, whole = at + 1, -whole
        lengths[row, column] = _integer(whole, cells, row, place) - at


@njit(inline="always")
def _exponent(v):
    """floor(log10(v)), without a logarithm."""
    power = np.int64(np.floor(((_as_bits(v) >> 52) - 1023) * _LOG2))  # this, or one less
    if v >= (_POWERS[power + 1] if power >= -1 else 1 / _POWERS[-power - 1]):
        power += 1
    return power


@njit(inline="always")
def _significant(v, digits, cells, row, at):
    """Writes v with so many significant digits as %g does; its length, 0 if that is not clear."""
    if v != v:
        cells[row, at], cells[row, at + 1] = 78, 65
        return 2
    place = at
    if v < 0:
        cells[row, at] = _MINUS
        place += 1
        v = -v
    if not 1e-290 < v < 1e290:
        if v == 0 and place == at:  # minus zero is not less than zero
            if 1 / v < 0:
                return 0
            cells[row, at] = _ZERO
            return 1
        return 0
    power = _exponent(v)
    shift = digits - 1 - power
    scaled = v * _POWERS[shift] if shift >= 0 else v / _POWERS[-shift]
    whole = np.floor(scaled)
    part = scaled - whole
    # Two roundings so far, each of 1e-16: only so close to a half can it be on the wrong side.
    if abs(part - 0.5) < 1e-15 * _POWERS[digits]:
        return 0
    number = np.int64(whole) + (part > 0.5)
    top = np.int64(_POWERS[digits])
    while number >= top:
        number //= 10
        power += 1
    if number * 10 < top:  # a power of ten was rounded
        return 0
    left = digits  # digits that are not trailing zeros
    while number % 10 == 0:
        number //= 10
        left -= 1
    if power < -4 or power >= digits:
        return _scientific(number, left, power, cells, row, place) - at
    return _fixed(number, left, power, cells, row, place) - at


@njit(inline="always")
def _fixed(number, left, power, cells, row, place):
    if power < 0:
        cells[row, place], cells[row, place + 1] = _ZERO, _POINT
        place += 2
        for _ in range(-power - 1):
            cells[row, place] = _ZERO
            place += 1
        return _integer(number, cells, row, place)
    if left <= power + 1:
        for _ in range(power + 1 - left):
            number *= 10
        return _integer(number, cells, row, place)
    end = _integer(number, cells, row, place)
    for j in range(end, place + power + 1, -1):
        cells[row, j] = cells[row, j - 1]
    cells[row, place + power + 1] = _POINT
    return end + 1


@njit(inline="always")
def _scientific(number, left, power, cells, row, place):
    end = _integer(number, cells, row, place)
    if left > 1:
        for j in range(end, place + 1, -1):
            cells[row, j] = cells[row, j - 1]
        cells[row, place + 1] = _POINT
        end += 1
    cells[row, end], cells[row, end + 1] = _E, _PLUS
    if power < 0:
        cells[row, end + 1] = _MINUS
        power = -power
    end += 2
    if power < 10:
        cells[row, end] = _ZERO
        end += 1
    return _integer(power, cells, row, end)


@njit(cache=True, nogil=True, error_model="numpy")
def numbers(values, digits, cells, lengths, at, column, first, step):
    """Values with so many significant digits. A length of 0 is for the caller to fill in."""
    for i in range(values.shape[0]):
        row = first + step * i
        lengths[row, column] = _significant(values[i], digits, cells, row, at)


@njit(cache=True, nogil=True)
def texts(codes, cells, lengths, at, column, first, step):
    """Code points (rows, longest), zero after the end; False if one is not printable ASCII."""
    for i in range(codes.shape[0]):
        row, j = first + step * i, 0
        while j < codes.shape[1] and codes[i, j]:
            if not _SPACE < codes[i, j] < _DELETE:
                return False
            cells[row, at + j] = codes[i, j]
            j += 1
        lengths[row, column] = j
    return True


@njit(cache=True, nogil=True)
def joined(cells, lengths, places, widths, separator, skipped, out):
    """Rows of right-aligned cells, a line each; gives the number of bytes."""
    at = 0
    for row in range(cells.shape[0]):
        if skipped[row]:
            continue
        for column in range(widths.shape[0]):
            if column:
                out[at] = separator
                at += 1
            length = lengths[row, column]
            for _ in range(widths[column] - length):
                out[at] = _SPACE
                at += 1
            place = places[column]
            for j in range(length):
                out[at + j] = cells[row, place + j]
            at += length
        out[at] = _NEWLINE
        at += 1
    return at
