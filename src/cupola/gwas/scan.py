"""Columns of a text file with the same number of fields in every line, if it is a clean one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cupola.gwas.available import has_numba

_MOST = (1 << 31) - 1  # bytes of a file whose places fit into 32 bits


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
