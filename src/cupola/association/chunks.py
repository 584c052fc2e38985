"""Chunks: the variants of one question, and how those of a study are shared out over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cupola.federation.message import Arrays


@dataclass(frozen=True)
class Chunk:
    """Variants of one question: rows `index` of the list, all in [start, stop), of one kind."""

    start: int
    stop: int
    kind: int
    index: np.ndarray

    def arrays(self, chosen: np.ndarray | None = None) -> Arrays:
        """Which variants are meant (all of them, or those of a mask), a bit each."""
        bits = np.zeros(self.stop - self.start, bool)
        bits[(self.index if chosen is None else self.index[chosen]) - self.start] = True
        return {"variants": np.packbits(bits)}


def stretches(kept: np.ndarray, kind: np.ndarray, size: int) -> list[Chunk]:
    """Those kept (variants,) of every `size` that follow one another on the list."""
    pieces = []
    for start in range(0, len(kept), size):
        stop = min(start + size, len(kept))
        for k in np.unique(kind[start:stop][kept[start:stop]]).tolist():
            index = start + np.flatnonzero(kept[start:stop] & (kind[start:stop] == k))
            pieces.append(Chunk(start, stop, int(k), index))
    return pieces


def gathered(chosen: np.ndarray, kind: np.ndarray, size: int) -> list[Chunk]:
    """Those chosen (variants,), `size` at a time, wherever they stand."""
    pieces = []
    for k in np.unique(kind[chosen]).tolist():
        alike = np.flatnonzero(chosen & (kind == k))
        for part in (alike[i : i + size] for i in range(0, len(alike), size)):
            pieces.append(Chunk(int(part[0]), int(part[-1]) + 1, int(k), part))
    return pieces
