"""The exact test of Hardy-Weinberg equilibrium (Wigginton, Cutler, Abecasis 2005): the probability,
given the allele counts, of numbers of heterozygotes as likely as this one or less.

It decides which variants are asked about next, so its bits are the same on every processor, with
numba and without: products and sums from one end to the other, no logarithms.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cupola.association.kernels import has_numba
from cupola.association.many_threads import over

# Numbers of heterozygotes less likely than this, of the likeliest one, count as impossible: of
# 300,000 people some 10,000 are left to add up, and none has fewer digits than a float should.
SMALLEST = 1e-280


def many(genotypes: np.ndarray) -> np.ndarray:
    """Exact p of (variants, 3) counts of people with two, one and no copies of an allele."""
    if not has_numba():
        return np.array([exact(*row) for row in genotypes.tolist()])
    from cupola.association.compiled_hardy_weinberg import exact as compiled

    counts, found = np.ascontiguousarray(genotypes, np.int64), np.empty(len(genotypes))
    over(len(counts), lambda part: compiled(counts[part], SMALLEST, found[part]))
    return found


@lru_cache(maxsize=1 << 16)
def exact(two: int, one: int, none: int) -> float:
    """The reference."""
    people = two + one + none
    if people == 0:
        return 1.0
    rare = min(2 * two + one, 2 * none + one)
    hets = np.arange(rare % 2, rare + 1, 2, dtype=float)
    first = (rare - hets) / 2
    last = people - first - hets
    # How much likelier two more heterozygotes are: ever less, so the likeliest number comes first.
    more = 4 * first[:-1] * last[:-1] / ((hets[:-1] + 1) * (hets[:-1] + 2))
    top = int(np.count_nonzero(more > 1))
    with np.errstate(under="ignore"):
        above, below = np.cumprod(more[top:]), np.cumprod(1 / more[:top][::-1])[::-1]
    chance = np.concatenate([below, [1.0], above])
    mine = chance[(one - rare % 2) // 2]
    if mine < SMALLEST:
        return 0.0
    chance = chance[chance >= SMALLEST]
    unlikely = chance[chance <= mine * (1 + 1e-8)]
    return float(min(1.0, np.cumsum(unlikely)[-1] / np.cumsum(chance)[-1]))
