"""Columns of numbers and texts as lines of text, with the digits that PLINK (C's %g) prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from cupola.gwas.available import has_numba

_BLOCK = 1 << 15  # rows formatted at a time
_ROOM = 24  # bytes of a number: more than any with 8 digits takes
_TINY = 1e-290  # below it a p-value is printed from its logarithm or by the slow form


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
        text = _fast(lines, part, where, separator) if has_numba() else None
        file.write(slow_lines(lines, part, where, separator) if text is None else text)


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


def _fast(
    lines: Sequence[Sequence[Column]], part: slice, shown: Sequence[np.ndarray], separator: str
) -> bytes | None:
    """The same bytes, compiled; None if a text is not plain ASCII."""
    from cupola.gwas import compiled_text

    rows, step = part.stop - part.start, len(lines)
    room = [max(_room(line[j]) for line in lines) for j in range(len(lines[0]))]
    places = np.cumsum([0, *room])
    cells = np.empty((rows * step, int(places[-1])), np.uint8)
    lengths = np.zeros((rows * step, len(room)), np.int32)
    for first, line in enumerate(lines):
        for j, column in enumerate(line):
            place = (cells, lengths, int(places[j]), j, first, step)
            if not _fill(column, part, place):
                return None
    skipped = np.zeros((rows, step), bool)
    for i, where in enumerate(shown):
        skipped[:, i + 1] = ~where
    widths = np.array([c.width for c in lines[0]], np.int64)
    longest = int((np.maximum(widths, room) + 1).sum())
    out = np.empty(rows * step * longest, np.uint8)
    flat = skipped.reshape(-1)
    size = compiled_text.joined(cells, lengths, places, widths, ord(separator), flat, out)
    return out[:size].tobytes()


def _room(column: Column) -> int:
    if isinstance(column.values, str):
        return max(1, len(column.values))
    return max(1, column.values.dtype.itemsize // 4) if column.is_text else _ROOM


def _fill(
    column: Column, part: slice, place: tuple[np.ndarray, np.ndarray, int, int, int, int]
) -> bool:
    from cupola.gwas import compiled_text

    cells, lengths, at, j, first, step = place
    if isinstance(column.values, str):
        whole = np.full(part.stop - part.start, column.values)
        return _fill(Column("", 0, whole), slice(0, len(whole)), place)
    values = column.values[part]
    if column.is_text:
        codes = np.ascontiguousarray(values).view(np.uint32).reshape(len(values), -1)
        return bool(compiled_text.texts(codes, *place))
    values = np.ascontiguousarray(values, np.float64)
    if column.digits == 0:
        compiled_text.wholes(values, *place)
        return True
    compiled_text.numbers(values, column.digits, *place)
    unclear = np.flatnonzero(lengths[first::step, j] == 0)
    if column.log10 is not None:
        unclear = np.union1d(unclear, np.flatnonzero(values < _TINY))
    for i in unclear.tolist():
        (text,) = column.texts(slice(part.start + i, part.start + i + 1))
        row = first + step * i
        cells[row, at : at + len(text)] = np.frombuffer(text.encode(), np.uint8)
        lengths[row, j] = len(text)
    return True
