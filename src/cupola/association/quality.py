"""Global minor allele and quality filters, from pooled counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cupola.association import hardy_weinberg
from cupola.association.agreement import KEPT, R_HARDY, R_INFO, R_MAF, R_MISSING
from cupola.association.design import AUTOSOME, SEX_X, kinds
from cupola.federation.message import Arrays, Spec
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.study_program import Association


def counted(told: Arrays) -> Arrays:
    """Totals of counts as they are kept: whole numbers; of dosages the copies of a1 and of both
    alleles as numbers, and 'squares'."""
    if "copies" not in told:
        return {name: np.rint(array).astype(np.int32) for name, array in told.items()}
    both = 2 * np.rint(told["people"])
    alleles = np.stack([told["copies"], both], axis=2).astype(np.float64)
    return {"alleles": alleles, "squares": told["squares"].astype(np.float64)}


def imagined(expects: Mapping[str, Spec], both: np.ndarray, people: int) -> Arrays:
    """Counts of variants that pass every filter, for a rehearsal. both: alleles with a call."""
    total = {name: np.zeros(spec.shape) for name, spec in expects.items()}
    if "copies" in total:
        total["people"][:, 0], total["copies"][:, 0] = people - 1, people / 2
        total["squares"][:] = people / 2
        return total
    total["alleles"][:, 0] = np.stack([both // 2, both], axis=1)
    if "genotypes" in total:
        total["genotypes"][:, -1] = [people // 4, people // 2, people // 4]
    return total


def unrounded(alleles: np.ndarray) -> np.ndarray:
    """A copy of counts with room to add them up: int64; sums of dosages stay numbers."""
    return alleles.astype(np.float64 if alleles.dtype.kind == "f" else np.int64)


def pooled(alleles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copies of the proposed a1 and of both alleles over all groups."""
    total = unrounded(alleles[:, 0])
    for group in range(1, alleles.shape[1]):  # numpy's sum over a short axis is slow
        total += alleles[:, group]
    return total[:, 0], total[:, 1]


def frequency(alleles: np.ndarray) -> np.ndarray:
    """Frequency of the proposed a1 over all people, (variants,); NaN without a call."""
    a1, both = pooled(alleles)
    with np.errstate(invalid="ignore", divide="ignore"):
        return a1 / both


def imputation_quality(alleles: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """MACH's r2: the variance of the dosages to that of calls in equilibrium, 2p(1 - p); NaN for
    variants with one allele. squares: of dosages, over all people."""
    a1, both = pooled(alleles)
    with np.errstate(invalid="ignore", divide="ignore"):
        people = both / 2
        mean = a1 / people
        return (squares / people - mean * mean) / (mean * (1 - mean / 2))


def major_is_a1(alleles: np.ndarray) -> np.ndarray:
    """Where the proposed a1 is the more frequent allele, so that PLINK would swap them."""
    a1, both = pooled(alleles)
    return 2 * a1 > both


def filtered(program: Association, state: State) -> np.ndarray:
    """Reasons after the filters on frequency, missing calls and Hardy-Weinberg equilibrium."""
    chosen, alleles = program.study.quality, state.arrays["alleles"]
    reason = state.arrays["reason"].copy()
    rate = frequency(alleles)
    minor = np.minimum(rate, 1 - rate)
    observed = pooled(alleles)[1]
    expected = program.expected_alleles(state, slice(None))
    missing = 1 - observed / np.maximum(expected, 1)
    if chosen.maf > 0:
        reason[(reason == KEPT) & ~(minor >= chosen.maf)] = R_MAF
    if chosen.missing < 1:
        reason[(reason == KEPT) & (missing > chosen.missing)] = R_MISSING
    if chosen.info > 0:
        fine = imputation_quality(alleles, state.arrays["squares"]) >= chosen.info
        reason[(reason == KEPT) & ~fine] = R_INFO
    if chosen.hardy_weinberg > 0:
        kind = kinds(program.variants(state).chromosome)
        asked = np.flatnonzero((reason == KEPT) & ((kind == AUTOSOME) | (kind == SEX_X)))
        p = hardy_weinberg.many(state.arrays["genotypes"][asked, -1])
        reason[asked[p < chosen.hardy_weinberg]] = R_HARDY
    return reason
