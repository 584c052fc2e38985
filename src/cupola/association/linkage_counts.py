"""Linkage disequilibrium at a cohort: haplotypes that can be told of pairs of variants.

Of two variants with a call a person has two haplotypes. Which they are follows from the genotypes,
but for who is heterozygous at both. So five counts over people are all that the maximum-likelihood
frequencies of haplotypes (Hill 1974), and r^2 as PLINK 1.9 clumps by, need of a pair.

What they tell. A variant with one carrier makes its counts with others that person's genotypes; so
a cohort withholds pairs with a variant of which it has few minor alleles. A variant with as many
partners as there are people to tell apart is a block of the genotypes itself; so it withholds
variants with more partners than a fifth of its people. And a variant is asked about once.
"""

from __future__ import annotations

import numpy as np

from cupola.association.files import CohortError
from cupola.association.limits import small, without
from cupola.association.site import Site, guarded
from cupola.association.study_choices import PEOPLE_PER_PARTNER
from cupola.association.tasks import counted, listed_rows, sized
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

LINKAGE = "gwas linkage"
LEAST_MINOR = 50  # minor alleles that a cohort has of a variant whose pairs it tells
NO_CALL = 3
_PEOPLE = 1 << 13  # at once
_ROUND = 0.1  # a dosage farther from a whole number is no call, as in PLINK 2


@task(LINKAGE)
@guarded
def linkage(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Per pair of variants: haplotypes a1-a1, a1-a2, a2-a1, a2-a2 that are known, and people who
    are heterozygous at both."""
    local, swapped = listed_rows(own, site, question)
    pairs = question.arrays["pairs"].astype(np.int64)
    if pairs.ndim != 2 or pairs.shape[1:] != (2,) or not len(pairs):
        raise Declined("question-not-understood")
    if pairs.min() < 0 or pairs.max() >= len(local) or len(np.unique(pairs, axis=0)) < len(pairs):
        raise Declined("question-not-understood")
    least = own.limits.least_cell
    own.count(question, LINKAGE, local, len(own.cohort.variants), 1)
    people = np.flatnonzero(counted(own.cohort, least))
    copies = _copies(own, local, swapped)[:, people]
    counts = pair_counts(copies, pairs)
    secret = withheld(copies, pairs)
    if least:
        alone = len(people) - (counts[:, :4].sum(axis=1) // 2 + counts[:, 4])
        secret |= small(counts, least).any(axis=1) | small(alone, least)
    return sized(site, question, without(site, question, {"haplotypes": counts}, secret))


def _copies(own: Site, local: np.ndarray, swapped: np.ndarray) -> np.ndarray:
    """(variants, everybody), int8: copies of the list's a1; NO_CALL without one."""
    dosage = own.cohort.bed.dosages(local)
    dosage[swapped] = 2 - dosage[swapped]
    whole = np.rint(dosage)
    told = np.abs(dosage - whole) <= _ROUND  # False where it is NaN
    if not len(whole):
        raise CohortError("question-not-understood", own.files.name, "no variants")
    return np.where(told, whole, NO_CALL).astype(np.int8)


def withheld(copies: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Pairs that a cohort keeps back: with a variant of few minor alleles, or of too many
    partners."""
    people = copies.shape[1]
    a1 = (copies == 1).sum(axis=1) + 2 * (copies == 2).sum(axis=1)
    both = 2 * (copies != NO_CALL).sum(axis=1)
    partners = np.bincount(pairs.reshape(-1), minlength=len(copies))
    secret = np.minimum(a1, both - a1) < LEAST_MINOR
    secret |= PEOPLE_PER_PARTNER * partners > people
    return secret[pairs].any(axis=1)


def pair_counts(copies: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(pairs, 5) of (variants, people) 0, 1, 2, NO_CALL."""
    found = np.zeros((len(pairs), 5))
    order = np.argsort(pairs[:, 0], kind="stable")
    firsts, starts = np.unique(pairs[order, 0], return_index=True)
    groups = np.split(order, starts[1:])
    for start in range(0, copies.shape[1], _PEOPLE):
        part = copies[:, start : start + _PEOPLE]
        # 32 bits hold counts of so many people exactly.
        none, one, two = ((part == n).astype(np.float32) for n in range(3))
        for first, group in zip(firsts.tolist(), groups):
            others = pairs[group, 1]
            mine = np.stack([none[first], one[first], two[first]])
            t = np.stack([x[others] @ mine.T for x in (none, one, two)])  # by other's, pair, mine
            found[group] += np.stack([
                2 * t[2, :, 2] + t[1, :, 2] + t[2, :, 1],
                2 * t[0, :, 2] + t[1, :, 2] + t[0, :, 1],
                2 * t[2, :, 0] + t[2, :, 1] + t[1, :, 0],
                2 * t[0, :, 0] + t[0, :, 1] + t[1, :, 0],
                t[1, :, 1],
            ], axis=1)  # fmt: skip
    return np.rint(found).astype(np.int64)
