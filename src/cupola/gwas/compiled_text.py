"""Text at the speed of the calls, compiled by numba: fields of a file, lists of variants.

Clean files only. What is odd (other bytes than printable ASCII, ragged lines) is left to the slow
forms in `scan`, `files` and `listing`.
"""

# mypy: ignore-errors

from __future__ import annotations

from numba import njit

_NEWLINE, _RETURN, _TAB, _SPACE, _DELETE = 10, 13, 9, 32, 127
_MINUS, _ZERO, _NINE = 45, 48, 57


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
def _copied(text, start, end, capitals, found, line):
    """A text as code points, zeros after it; its length, which may be more than there is room."""
    room = found.shape[1]
    for j in range(min(room, end - start)):
        b = text[start + j]
        if capitals and 97 <= b <= 122:
            b -= 32
        found[line, j] = b
    for j in range(end - start, room):
        found[line, j] = 0
    return end - start


@njit(cache=True, nogil=True)
def variants(text, columns, begins, position, names, first, second, widest):
    """A .bim file in one pass. columns: 5 or 6. begins: (runs, 3), filled with the lines where
    another chromosome begins, and where its text does and ends. widest: the longest name and
    alleles, filled. Gives the numbers of lines and of runs; lines are -1 if anything is odd."""
    n = text.shape[0]
    i, line, runs = 0, 0, 0
    start_before, length_before = 0, -1
    while i < n:
        column = 0
        while True:
            while i < n and (text[i] == _SPACE or text[i] == _TAB):
                i += 1
            if i == n or text[i] == _NEWLINE or text[i] == _RETURN:
                break
            start = i
            while i < n and _SPACE < text[i] < _DELETE:
                i += 1
            if i == start:
                return -1, 0
            if column == 0:
                same = i - start == length_before
                for j in range(i - start):
                    same = same and text[start + j] == text[start_before + j]
                if not same:
                    begins[runs, 0], begins[runs, 1], begins[runs, 2] = line, start, i
                    runs += 1
                    start_before, length_before = start, i - start
            elif column == 1:
                widest[0] = max(widest[0], _copied(text, start, i, False, names, line))
            elif column == columns - 3:
                at = start + (text[start] == _MINUS)
                if not 0 < i - at < 19:
                    return -1, 0
                value = 0
                for j in range(at, i):
                    if not _ZERO <= text[j] <= _NINE:
                        return -1, 0
                    value = 10 * value + (text[j] - _ZERO)
                position[line] = value if at == start else -value
            elif column == columns - 2:
                widest[1] = max(widest[1], _copied(text, start, i, True, first, line))
            elif column == columns - 1:
                widest[2] = max(widest[2], _copied(text, start, i, True, second, line))
            elif column >= columns:
                return -1, 0
            column += 1
        if i < n and text[i] == _RETURN:
            i += 1
            if i == n or text[i] != _NEWLINE:
                return -1, 0
        i += 1
        if column:
            if column != columns:
                return -1, 0
            line += 1
    return line, runs


@njit(cache=True, nogil=True)
def longest(text):
    """Bytes of the longest line; -1 if a byte is zero or no ASCII."""
    most, start = 0, 0
    for i in range(text.shape[0]):
        if text[i] == _NEWLINE:
            most = max(most, i - start)
            start = i + 1
        elif not 0 < text[i] <= _DELETE:
            return -1
    return max(most, text.shape[0] - start)


@njit(cache=True, nogil=True)
def separated(text, found):
    """The lines of a text as code points: (lines, longest) uint32, zero where one is shorter."""
    start = 0
    for line in range(found.shape[0]):
        end = start
        while end < text.shape[0] and text[end] != _NEWLINE:
            end += 1
        _copied(text, start, end, False, found, line)
        start = end + 1


@njit(cache=True, nogil=True)
def joined(codes, out):
    """The inverse of `separated`; the number of bytes."""
    at = 0
    for line in range(codes.shape[0]):
        if line:
            out[at] = _NEWLINE
            at += 1
        for j in range(codes.shape[1]):
            if codes[line, j] == 0:
                break
            out[at] = codes[line, j]
            at += 1
    return at
