"""A cohort made ready for a test: who is tested on which chromosome, and their columns.

Chromosomes come in four kinds. On the autosomes (and what PLINK calls XY) everybody has two copies;
on X males have one, on Y only males count, with one; mitochondria have one in everybody. A single
copy counts 1, so that a haploid person's genotype is 0 or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cupola.association.bed import WORD
from cupola.association.files import MT, X, Y
from cupola.association.kernels import without_half_calls

if TYPE_CHECKING:
    from cupola.association.cohort import Cohort

AUTOSOME, SEX_X, SEX_Y, MITO = range(4)
_LOW = np.uint64(0x5555555555555555)
ALL_MISSING = 0x55  # four calls
FEWEST_CHILDREN = 10  # of whom the difference to everybody's counts may tell


def kinds(chromosome: np.ndarray) -> np.ndarray:
    """The kind of each chromosome, uint8."""
    found = np.full(len(chromosome), AUTOSOME, np.uint8)
    for number, kind in ((X, SEX_X), (Y, SEX_Y), (MT, MITO)):
        found[chromosome == number] = kind
    return found


def haploid(cohort: Cohort, kind: int) -> np.ndarray:
    """Who has a single copy."""
    if kind == AUTOSOME:
        return np.zeros(len(cohort.person), bool)
    return np.ones(len(cohort.person), bool) if kind == MITO else cohort.male


def present(cohort: Cohort, kind: int) -> np.ndarray:
    """Who has this chromosome and counts."""
    return cohort.loaded & cohort.male if kind == SEX_Y else cohort.loaded


def founders(cohort: Cohort, groups: np.ndarray) -> np.ndarray:
    """Of groups of people (groups, people) those without parents. A group's few children count as
    founders: the difference to everybody's alleles would be theirs alone."""
    young = groups & children(cohort)
    enough = young.sum(axis=1, keepdims=True) >= FEWEST_CHILDREN
    return groups & ~(young & enough)


def children(cohort: Cohort) -> np.ndarray:
    """Who is no founder, if that matters to the study."""
    nobody = np.zeros(len(cohort.person), bool)
    told = cohort.wanted.founders and cohort.child is not None
    return nobody if cohort.child is None or not told else cohort.child


def calls(cohort: Cohort, local: np.ndarray, swapped: np.ndarray, kind: int) -> np.ndarray:
    """Packed calls of these rows, counted as copies of the proposed a1. A variant that the cohort
    lacks (-1) is one at which nobody has a call."""
    rows = cohort.bed.rows(np.maximum(local, 0))
    rows[local < 0] = ALL_MISSING
    if swapped.any():
        words = rows[swapped].view("<u8")
        equal = ~(words ^ (words >> np.uint64(1))) & _LOW
        rows[swapped] = (words ^ (equal | (equal << np.uint64(1)))).view(np.uint8)
    single = haploid(cohort, kind)
    return without_half_calls(rows, single) if single.any() else rows


def fewest_people(columns: int, per_column: int) -> int:
    """People that a regression with so many columns needs, the intercept and the genotype among
    them: with fewer, the totals could tell single genotypes."""
    return max(columns + 2, per_column * columns)


@dataclass(frozen=True)
class Design:
    """Tested people of one kind of chromosome.

    people: their indices. columns: (people, 1 + covariates [+ sex on X]), standardised as the
    study says. y: 0 and 1, or standardised. scale: what a copy counts, (people,).
    """

    people: np.ndarray
    columns: np.ndarray
    y: np.ndarray
    scale: np.ndarray
    everybody: int

    @property
    def chosen(self) -> np.ndarray:
        mask = np.zeros(self.everybody, bool)
        mask[self.people] = True
        return mask

    @cached_property
    def products(self) -> np.ndarray:
        """(people, pairs): products of pairs of [columns, y], upper triangle row by row."""
        whole = np.column_stack([self.columns, self.y])
        i, j = np.triu_indices(whole.shape[1])
        return whole[:, i] * whole[:, j]

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Rows for everybody of the .fam file, zero for those not tested."""
        result = np.zeros((-(-self.everybody // (4 * WORD)) * 4 * WORD, values.shape[1]))
        result[self.people] = values
        return result


def design(
    cohort: Cohort,
    kind: int,
    binary: bool,
    shift: np.ndarray,
    width: np.ndarray,
    sex_on_x: bool,
    outliers: float = 0.0,
) -> Design:
    """shift, width: of the covariates, then of the trait; columns are (value - shift) / width.
    outliers: how many times the usual length a person's covariates may have; 0: any."""
    tested = cohort.tested(binary, True) & present(cohort, kind)
    extra = kind == SEX_X and sex_on_x
    if extra:
        tested &= cohort.male | cohort.female
    people = np.flatnonzero(tested)
    covariates = (cohort.covariates[people] - shift[:-1]) / width[:-1]
    if outliers > 0:
        most = outliers * np.sqrt(covariates.shape[1])
        length = np.sqrt((covariates**2).sum(axis=1, keepdims=True))
        covariates = covariates * np.minimum(1.0, most / np.maximum(length, 1e-300))
    columns = [np.ones((len(people), 1)), covariates]
    if extra:
        columns.append(cohort.male[people, None].astype(float))
    y = (cohort.traits(binary)[people] - shift[-1]) / width[-1]
    scale = np.where(haploid(cohort, kind)[people], 0.5, 1.0)
    return Design(people, np.concatenate(columns, axis=1), y, scale, len(cohort.person))
