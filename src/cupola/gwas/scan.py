"""Columns of a text file with the same number of fields in every line, if it is a clean one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cupola.gwas.available import has_numba

_MOST = (1 << 31) - 1  # bytes of a file whose places fit into 32 bits
_SAMPLE = 4096  # bytes at its end


@dataclass(frozen=True)
class Fields:
    """Where the fields are: starts, ends (lines, columns), int32."""

    text: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def columns(self) -> int:
        return self.starts.shape[1]

    def letters(self, column: int, capitals: bool = False) -> np.ndarray:
        """A column as numpy strings."""
        from cupola.gwas import compiled_text

        longest = int((self.ends[:, column] - self.starts[:, column]).max(initial=1))
        found = np.zeros((len(self), longest), np.uint32)
        compiled_text.letters(self.text, self.starts, self.ends, column, capitals, found)
        return found.view(f"<U{longest}")[:, 0]

    def integers(self, column: int) -> np.ndarray | None:
        """A column as int64; None if something else is in it."""
        from cupola.gwas import compiled_text

        found = np.empty(len(self), np.int64)
        fine = compiled_text.integers(self.text, self.starts, self.ends, column, found)
        return found if fine else None


def scan(text: bytes) -> Fields | None:
    """The fields of a file; None if it is for the slow reader to say what is wrong or odd."""
    columns = len(text[: text.find(b"\n") if b"\n" in text else None].split())
    if not has_numba() or not columns or len(text) > _MOST:
        return None
    from cupola.gwas import compiled_text

    data = np.frombuffer(text, np.uint8)
    starts, ends = (np.empty((text.count(b"\n") + 1, columns), np.int32) for _ in range(2))
    lines = compiled_text.fields(data, starts, ends)
    return None if lines < 0 else Fields(data, starts[:lines], ends[:lines])


def variant_columns(text: bytes) -> tuple[list[tuple[str, int]], list[np.ndarray]] | None:
    """A .bim file in one pass: chromosomes as runs of equal ones (text, lines), then columns:
    positions, names, alleles in capitals. None if it is for the slow reader."""
    columns = len(text[: text.find(b"\n") if b"\n" in text else None].split())
    if not has_numba() or columns not in (5, 6) or len(text) > _MOST:
        return None
    from cupola.gwas import compiled_text

    data, most = np.frombuffer(text, np.uint8), text.count(b"\n") + 1
    position, begins = np.empty(most, np.int64), np.empty((most, 3), np.int64)
    room = _room(text, columns)
    while True:
        texts = [np.empty((most, letters), np.uint32) for letters in room]
        widest = np.ones(3, np.int64)
        found = (data, columns, begins, position, *texts, widest)
        lines, runs = compiled_text.variants(*found)
        if lines < 1:
            return None
        if (widest <= room).all():
            break
        room = np.maximum(room, widest).tolist()
    ends = np.append(begins[1:runs, 0], lines)
    names = [text[a:b].decode() for _, a, b in begins[:runs].tolist()]
    strings = [t[:lines].view(f"<U{t.shape[1]}")[:, 0] for t in texts]
    return list(zip(names, (ends - begins[:runs, 0]).tolist())), [position[:lines], *strings]


def _room(text: bytes, columns: int) -> list[int]:
    """Letters of names and alleles, as far as the end of a file tells."""
    fields = [line.split() for line in text[-_SAMPLE:].splitlines()[1:]]
    whole = [line for line in fields if len(line) == columns]
    return [max((len(line[i]) for line in whole), default=1) for i in (1, columns - 2, columns - 1)]
