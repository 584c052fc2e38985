"""Tables as text: aligned columns of numbers and words, with the digits that C's %g prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from cupola.association.kernels import has_numba
from cupola.association.texts import Texts

_BLOCK = 1 << 13  # rows formatted at a time: they stay in the cache
_MOST_DIGITS = 8  # that the compiled form prints


@dataclass(frozen=True)
class Column:
    """A heading, the least width, and values: texts; an array of numbers, printed with
    `digits` significant digits, as integers if 0; or one text for all. log10: of values that may be
    too small for a float."""

    heading: str
    width: int
    values: np.ndarray | Texts | str
    digits: int = 4
    log10: np.ndarray | None = None

    @property
    def is_text(self) -> bool:
        return isinstance(self.values, str | Texts) or self.values.dtype.kind in "UO"

    def texts(self, part: slice) -> Sequence[str]:
        """What is printed of some rows."""
        if isinstance(self.values, str):
            return [self.values] * (part.stop - part.start)
        values = self.values[part].tolist()
        if isinstance(self.values, Texts) or self.is_text:
            return values
        form = f"%.{self.digits}g" if self.digits else "%.0f"
        found = ["NA" if v != v else form % v for v in values]
        if self.log10 is not None:
            for i in np.flatnonzero((self.values[part] < 1e-300) & np.isfinite(self.log10[part])):
                log10 = float(self.log10[part][i])
                power = int(np.floor(log10))
                found[i] = f"{form % 10 ** (log10 - power)}e{power}"
        return found


def write_table(
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
    file.write(_row(head, [c.heading for c in head], separator).encode())
    fast = has_numba() and all(c.digits <= _MOST_DIGITS for line in lines for c in line)
    for start in range(0, rows, _BLOCK):
        part = slice(start, min(start + _BLOCK, rows))
        facts = (lines, part, [where[part] for where in shown], separator)
        file.write((fast and _compiled_lines(*facts)) or slow_lines(*facts))


def slow_lines(
    lines: Sequence[Sequence[Column]], part: slice, shown: Sequence[np.ndarray], separator: str
) -> bytes:
    """Some rows by Python's `%`; the reference of the compiled form."""
    blocks = [
        [_row(line, row, separator) for row in zip(*(c.texts(part) for c in line))]
        for line in lines
    ]
    for block, where in zip(blocks[1:], shown):
        for i in np.flatnonzero(~where):
            block[i] = ""
    return "".join(row for variant in zip(*blocks) for row in variant).encode()


def _row(line: Sequence[Column], texts: Sequence[str], separator: str) -> str:
    return separator.join([text.rjust(c.width) for c, text in zip(line, texts)]) + "\n"


def _compiled_lines(
    lines: Sequence[Sequence[Column]], part: slice, shown: Sequence[np.ndarray], separator: str
) -> bytes | None:
    """The same bytes, compiled, but for rows with a number that is not clear; None if a text is
    not ASCII."""
    from cupola.association import compiled_text

    rows, step = part.stop - part.start, len(lines)
    layout, numbers = [], [np.empty(rows * step)]
    texts: list[Texts] = []
    for same in zip(*lines):  # one column, in each of the lines
        column, values = same[0], [c.values for c in same]
        place, digits = len(numbers), column.digits
        if column.is_text:
            place, digits = len(texts), compiled_text.TEXT
            texts.append(_texts_in_turn(values, part))
        else:
            numbers.append(np.stack([v[part] for v in values], axis=1).reshape(-1).astype(float))
        layout.append((place, column.width, digits, column.log10 is not None))
    if not all(column.ascii for column in texts):
        return None
    ends = np.zeros((rows * step + 1, len(texts)), np.int64)
    for j, told in enumerate(texts):
        ends[0, j] = ends[-1, j - 1] if j else 0
        ends[1:, j] = ends[0, j] + np.cumsum(told.lengths)
    data = np.concatenate([np.zeros(0, np.uint8), *(told.own_letters for told in texts)])
    skipped = np.stack([np.zeros(rows, bool), *(~where for where in shown)], axis=1).reshape(-1)
    columns, table = np.array(layout, np.int64), np.stack(numbers, axis=1)
    room = len(columns) + int(columns[:, 1].sum()) + len(numbers) * compiled_text.ROOM
    out = np.empty(rows * step * room + len(data), np.uint8)
    found, row = [], 0
    while row < rows * step:
        facts = (columns, table, data, ends, skipped, ord(separator), row, out)
        row, size = compiled_text.lines(*facts)
        found.append(out[:size].tobytes())
        if row < rows * step:
            at, line = part.start + row // step, lines[row % step]
            odd = [column.texts(slice(at, at + 1))[0] for column in line]
            found.append(_row(line, odd, separator).encode())
            row += 1
    return b"".join(found)


def _texts_in_turn(columns: Sequence[Any], part: slice) -> Texts:
    """Rows of several columns in turn: the first of each, the second of each, ... A column may be
    one text for all rows."""
    parts = [Texts.of([c] if isinstance(c, str) else c[part]) for c in columns]
    if len(parts) == 1 and not isinstance(columns[0], str):
        return parts[0]
    index = np.zeros((part.stop - part.start, len(parts)), np.int64)
    index += np.cumsum([0, *map(len, parts[:-1])])
    for i, column in enumerate(columns):
        if not isinstance(column, str):
            index[:, i] += np.arange(len(index))
    return Texts.joined(parts)[index.reshape(-1)]
