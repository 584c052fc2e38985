"""A cohort's genotypes of a study's markers as numbers: less their pooled means, 0 without a call.

X is the matrix of people and markers. Products X a and X'v are all that components, mixed models
and whole-genome regression need of it; it is never held as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cupola.association.bed import COPIES, MISSING, unpacked
from cupola.association.cohort import Cohort
from cupola.association.design import AUTOSOME, calls
from cupola.association.kernels import has_numba

_NUMBERS = 1 << 22  # in memory at once


@dataclass(frozen=True)
class Centred:
    """local, swapped: where the markers are in the cohort's file, and whose alleles are swapped.
    mean: over the pooled people, of the copies of the list's a1. people: which of the .fam file."""

    cohort: Cohort
    local: np.ndarray
    swapped: np.ndarray
    mean: np.ndarray
    people: np.ndarray

    def __len__(self) -> int:
        return len(self.local)

    def rows(self, part: slice | np.ndarray) -> np.ndarray:
        """Some markers, (markers, people) float64."""
        packed = calls(self.cohort, self.local[part], self.swapped[part], AUTOSOME)
        return self._decoded(packed, self.mean[part])

    def _decoded(self, packed: np.ndarray, mean: np.ndarray) -> np.ndarray:
        whole = len(self.cohort.person)
        if has_numba():
            from cupola.association.compiled import centred

            found = centred(packed, mean, whole)
        else:
            found = decoded(packed, mean, whole)
        return found if self._everybody else found[:, self.people]

    @property
    def _everybody(self) -> bool:
        return len(self.people) == len(self.cohort.person)

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All markers, some at a time."""
        size = max(1, _NUMBERS // max(1, len(self.cohort.person)))
        for start in range(0, len(self), size):
            part = slice(start, min(start + size, len(self)))
            yield part, self.rows(part)

    def times(self, vectors: np.ndarray) -> np.ndarray:
        """X a, (people, r), of (markers, r)."""
        found = np.zeros((len(self.people), vectors.shape[1]))
        for part, rows in self.blocks():
            found += rows.T @ vectors[part]
        return found

    def transposed(self, values: np.ndarray) -> np.ndarray:
        """X'v, (markers, r), of (people, r)."""
        found = np.empty((len(self), values.shape[1]))
        for part, rows in self.blocks():
            found[part] = rows @ values
        return found

    def gram(self, vectors: np.ndarray) -> np.ndarray:
        """X'X a, (markers, r)."""
        return self.transposed(self.times(vectors))

    def squares(self) -> np.ndarray:
        """Of every marker, over people, (markers,)."""
        return np.concatenate([(rows**2).sum(axis=1) for _, rows in self.blocks()])


def decoded(packed: np.ndarray, mean: np.ndarray, people: int) -> np.ndarray:
    """The obvious form: (markers, people) copies less the mean, 0 without a call."""
    call = unpacked(packed, people)
    return np.where(call == MISSING, 0.0, COPIES[call] - mean[:, None])
