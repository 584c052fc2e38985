"""The sums over a cohort's people that a regression takes of chosen variants, whatever genotypes
are: packed calls or dosages. Tasks know this interface, and not the form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from cupola.association import dosage_sums, kernels, reference
from cupola.association.bed import COPIES, MISSING, unpacked
from cupola.association.cohort import Cohort
from cupola.association.design import AUTOSOME, Design, calls
from cupola.association.genotypes import Genotypes, blocks
from cupola.federation.message import Declined


class Sums(NamedTuple):
    """cross: (variants, a + b), genotypes times columns, their squares times others. counts: what
    is counted of the tested people, whole numbers; last, those with a genotype. off: (variants, c),
    over people without one."""

    cross: np.ndarray
    counts: np.ndarray
    off: np.ndarray


class VariantSums(Protocol):
    """Chosen variants of a cohort, counted as copies of the proposed a1."""

    def __len__(self) -> int: ...

    def sums(self, made: Design, copies: np.ndarray, squares: np.ndarray, off: np.ndarray) -> Sums:
        """copies (people, a), squares (people, b), off (people, c), of tested people; a, b or c may
        be 0."""
        ...

    def logistic_sums(
        self, made: Design, beta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `reference.logistic_sums`."""
        ...

    def saddle_sums(
        self, made: Design, chance: np.ndarray, tilt: np.ndarray, at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `reference.dosage_saddle_sums`."""
        ...

    def genotypes(self, made: Design) -> Iterator[np.ndarray]:
        """Of each variant the genotypes of the tested people, NaN where missing."""
        ...


def variant_sums(cohort: Cohort, local: np.ndarray, swapped: np.ndarray, kind: int) -> VariantSums:
    """The variants of these rows, in the form that the study is about."""
    if cohort.wanted.dosages:
        if kind != AUTOSOME:
            raise Declined("dosages-of-autosomes-only")
        return DosageSums(cohort.bed, local, swapped)
    return CallSums(calls(cohort, local, swapped, kind))


@dataclass(frozen=True)
class CallSums:
    """rows: packed calls. counts are: the sum of genotypes, people with genotype 2, with a call."""

    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def sums(self, made: Design, copies: np.ndarray, squares: np.ndarray, off: np.ndarray) -> Sums:
        once = copies * made.scale[:, None]
        square = squares * (made.scale**2)[:, None]
        two, one = np.column_stack([2 * once, 4 * square]), np.column_stack([once, square])
        cross = kernels.call_sums(self.rows, made.spread(two), made.spread(one))
        lost = np.zeros((len(self.rows), off.shape[1]))
        if off.shape[1]:
            lost = kernels.missing_sums(self.rows, made.spread(off))
        return Sums(cross, self._counts(made), lost)

    def _counts(self, made: Design) -> np.ndarray:
        chosen = made.chosen
        single = np.zeros(len(chosen), bool)
        single[made.people[made.scale < 1]] = True
        groups = np.stack([chosen & ~single, chosen & single])
        found = kernels.genotype_counts(self.rows, groups)
        pair, alone = found[:, 0], found[:, 1]
        total = 2 * pair[:, 0] + pair[:, 1] + alone[:, 0]
        with_call = pair.sum(axis=1) + alone[:, 0] + alone[:, 2]
        return np.stack([total, pair[:, 0], with_call], axis=1)

    def logistic_sums(
        self, made: Design, beta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        facts = (made.people, made.scale, made.columns, made.y, beta)
        return kernels.logistic_sums(self.rows, *facts)

    def saddle_sums(
        self, made: Design, chance: np.ndarray, tilt: np.ndarray, at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        facts = (made.people, made.scale, made.columns, chance, tilt, at)
        return kernels.saddle_sums(self.rows, *facts)

    def genotypes(self, made: Design) -> Iterator[np.ndarray]:
        for row in self.rows:
            call = unpacked(row[None], made.everybody)[0, made.people]
            yield np.where(call == MISSING, np.nan, COPIES[call] * made.scale)


@dataclass(frozen=True)
class DosageSums:
    """Autosomal variants as numbers, read a few at a time. counts are: people with a dosage."""

    source: Genotypes
    local: np.ndarray
    swapped: np.ndarray

    def __len__(self) -> int:
        return len(self.local)

    def blocks(self, people: np.ndarray | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """Dosages of the proposed a1, of some people; NaN where the cohort lacks a variant."""
        for part, found in blocks(self.source, np.maximum(self.local, 0)):
            found[self.local[part] < 0] = np.nan
            found = found if people is None else found[:, people]
            other = self.swapped[part]
            found[other] = 2.0 - found[other]
            yield part, found

    def sums(self, made: Design, copies: np.ndarray, squares: np.ndarray, off: np.ndarray) -> Sums:
        a, k = copies.shape[1], len(self)
        cross = np.empty((k, a + squares.shape[1]))
        counts, lost = np.empty((k, 1), np.int64), np.zeros((k, off.shape[1]))
        for part, dosages in self.blocks(made.people):
            value, known = dosage_sums.told(dosages)
            cross[part, :a], cross[part, a:] = value @ copies, value**2 @ squares
            counts[part, 0] = np.rint(known.sum(axis=1))
            lost[part] = (1 - known) @ off
        return Sums(cross, counts, lost)

    def logistic_sums(
        self, made: Design, beta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        parts = [
            dosage_sums.logistic_sums(dosages, made.columns, made.y, beta[part])
            for part, dosages in self.blocks(made.people)
        ]
        gradient, information, spread = (np.concatenate(arrays) for arrays in zip(*parts))
        return gradient, information, spread

    def saddle_sums(
        self, made: Design, chance: np.ndarray, tilt: np.ndarray, at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        parts = [
            reference.dosage_saddle_sums(dosages, made.columns, chance, tilt[part], at[part])
            for part, dosages in self.blocks(made.people)
        ]
        found, spread = (np.concatenate(arrays) for arrays in zip(*parts))
        return found, spread

    def genotypes(self, made: Design) -> Iterator[np.ndarray]:
        for _, dosages in self.blocks(made.people):
            yield from dosages
