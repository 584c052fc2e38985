"""Global minor allele and quality filters, from pooled counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cupola.association import hardy_weinberg
from cupola.association.agreement import KEPT, R_HARDY, R_MAF, R_MISSING
from cupola.association.design import AUTOSOME, SEX_X, kinds
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.study_program import Association


def pooled(alleles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copies of the proposed a1 and of both alleles over all groups, int64."""
    total = alleles[:, 0].astype(np.int64)
    for group in range(1, alleles.shape[1]):  # numpy's sum over a short axis is slow
        total += alleles[:, group]
    return total[:, 0], total[:, 1]


def frequency(alleles: np.ndarray) -> np.ndarray:
    """Frequency of the proposed a1 over all people, (variants,); NaN without a call."""
    a1, both = pooled(alleles)
    with np.errstate(invalid="ignore", divide="ignore"):
        return a1 / both


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
    missing = 1 - observed / np.maximum(program.expected_alleles(state), 1)
    if chosen.maf > 0:
        reason[(reason == KEPT) & ~(minor >= chosen.maf)] = R_MAF
    if chosen.missing < 1:
        reason[(reason == KEPT) & (missing > chosen.missing)] = R_MISSING
    if chosen.hardy_weinberg > 0:
        kind = kinds(program.variants(state).chromosome)
        asked = np.flatnonzero((reason == KEPT) & ((kind == AUTOSOME) | (kind == SEX_X)))
        p = hardy_weinberg.many(state.arrays["genotypes"][asked, -1])
        reason[asked[p < chosen.hardy_weinberg]] = R_HARDY
    return reason
