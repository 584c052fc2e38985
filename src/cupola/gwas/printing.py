"""Columns of numbers and texts as lines of text, with the digits that PLINK (C's %g) prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from cupola.gwas.available import has_numba

_BLOCK = 1 << 13  # rows formatted at a time: they stay in the cache
_MOST_DIGITS = 8  # that the fast form prints


@dataclass(frozen=True)
class Column:
    """A heading, the least width, and values: an array of strings; of numbers, printed with
    `digits` significant digits, as integers if 0; or one text for all. log10: of values that may be
    too small for a float."""

    heading: str
    width: int
    values: np.ndarray | str
    digits: int = 4
    log10: np.ndarray | None = None

    @property
    def is_text(self) -> bool:
        return isinstance(self.values, str) or self.values.dtype.kind == "U"

    def texts(self, part: slice) -> Sequence[str]:
        """The slow form: what is printed of some rows."""
        if isinstance(self.values, str):
            return [self.values] * (part.stop - part.start)
        values = self.values[part].tolist()
        if self.is_text:
            return values
        form = f".{self.digits}g" if self.digits else ".0f"
        found = ["NA" if v != v else format(v, form) for v in values]
        if self.log10 is not None:
            for i in np.flatnonzero((self.values[part] < 1e-300) & np.isfinite(self.log10[part])):
                log10 = float(self.log10[part][i])
                power = int(np.floor(log10))
                found[i] = f"{10 ** (log10 - power):{form}}e{power}"
        return found


def write_lines(
    file: IO[bytes],
    lines: Sequence[Sequence[Column]],
    shown: Sequence[np.ndarray] = (),
    separator: str = " ",
) -> None:
    """Headings, then for every row one line of each of `lines`: columns, right-aligned.

    shown: of each of `lines` but the first, at which rows it is written.
    """
    head = lines[0]
    rows = max(len(c.values) for c in head if not isinstance(c.values, str))
    file.write(_slow_row(head, [c.heading for c in head], separator).encode())
    for start in range(0, rows, _BLOCK):
        part = slice(start, min(start + _BLOCK, rows))
        where = [where[part] for where in shown]
        if has_numba() and all(c.digits <= _MOST_DIGITS for line in lines for c in line):
            _write_fast(file, lines, part, where, separator)
        else:
            file.write(slow_lines(lines, part, where, separator))


def slow_lines(
    lines: Sequence[Sequence[Column]], part: slice, shown: Sequence[np.ndarray], separator: str
) -> bytes:
    """Some rows, written to be read; the reference of the fast form."""
    blocks = [
        [_slow_row(line, row, separator) for row in zip(*(c.texts(part) for c in line))]
        for line in lines
    ]
    for block, where in zip(blocks[1:], shown):
        for i in np.flatnonzero(~where):
            block[i] = ""
    return "".join(row for variant in zip(*blocks) for row in variant).encode()


def _slow_row(line: Sequence[Column], texts: Sequence[str], separator: str) -> str:
    return separator.join(f"{text:>{c.width}}" for c, text in zip(line, texts)) + "\n"


def _write_fast(
    file: IO[bytes],
    lines: Sequence[Sequence[Column]],
    part: slice,
    shown: Sequence[np.ndarray],
    separator: str,
) -> None:
    """The same bytes, compiled, but for rows with something odd in them."""
    from cupola.gwas import compiled_lines

    rows, step = part.stop - part.start, len(lines)
    columns, texts, numbers = _layout(lines)
    cells = np.zeros((rows * step, texts), np.uint8)
    values = np.empty((rows * step, numbers))
    for first, line in enumerate(lines):
        for (_, place, _, room, _), column in zip(columns.tolist(), line):
            if column.is_text:
                _fill(cells[first::step, place : place + room], column, part)
            else:
                values[first::step, place] = column.values[part]
    skipped = np.zeros((rows, step), bool)
    for i, where in enumerate(shown):
        skipped[:, i + 1] = ~where
    flat = skipped.reshape(-1)
    room = np.where(columns[:, 0] == compiled_lines.TEXT, columns[:, 3], compiled_lines.ROOM)
    out = np.empty(rows * step * int((np.maximum(columns[:, 2], room) + 1).sum()), np.uint8)
    row = 0
    while row < rows * step:
        out.fill(ord(" "))
        row, size = compiled_lines.lines(columns, values, cells, flat, ord(separator), row, out)
        file.write(out[:size].data)
        if row < rows * step:
            at, line = part.start + row // step, lines[row % step]
            odd = [column.texts(slice(at, at + 1))[0] for column in line]
            file.write(_slow_row(line, odd, separator).encode())
            row += 1


def _layout(lines: Sequence[Sequence[Column]]) -> tuple[np.ndarray, int, int]:
    """What the compiled form must know of columns, and the room for texts and for numbers."""
    from cupola.gwas.compiled_lines import NUMBER, TEXT, WHOLE

    found, texts, numbers = [], 0, 0
    for column, *others in zip(*lines):
        if column.is_text:
            room = max(_letters(c) for c in (column, *others))
            found.append((TEXT, texts, column.width, room, 0))
            texts += room
        else:
            kind = NUMBER if column.digits else WHOLE
            found.append((kind, numbers, column.width, column.digits, column.log10 is not None))
            numbers += 1
    return np.array(found, np.int64), texts, numbers


def _letters(column: Column) -> int:
    """Of its longest text."""
    if isinstance(column.values, str):
        return max(1, len(column.values))
    return max(1, column.values.dtype.itemsize // 4)


def _fill(cells: np.ndarray, column: Column, part: slice) -> None:
    """Texts as bytes, 255 for what is none."""
    whole = column.values
    texts = np.array([whole]) if isinstance(whole, str) else np.ascontiguousarray(whole[part])
    codes = texts.view(np.uint32).reshape(len(texts), -1)
    np.minimum(codes, 255, out=cells[:, : codes.shape[1]], casting="unsafe")
