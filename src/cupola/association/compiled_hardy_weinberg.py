"""`hardy_weinberg.exact` of many variants, compiled: the same operations in the same order."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit


@njit(inline="always")
def _more(hets, rare, people):
    """How much likelier two more heterozygotes are."""
    first = (rare - hets) / 2.0
    last = people - first - hets
    return 4.0 * first * last / ((hets + 1.0) * (hets + 2.0))


# No fastmath: fused or reordered operations would have other last digits than the reference.
@njit(cache=True, nogil=True)
def exact(genotypes, smallest, found):
    """genotypes: (variants, 3) int64. found: (variants,), to be filled."""
    longest = 1
    for s in range(genotypes.shape[0]):
        two, one, none = genotypes[s]
        longest = max(longest, min(2 * two + one, 2 * none + one) // 2 + 1)
    chance = np.empty(longest)
    for s in range(genotypes.shape[0]):
        two, one, none = genotypes[s]
        total = two + one + none
        if total == 0:
            found[s] = 1.0
            continue
        copies = min(2 * two + one, 2 * none + one)
        odd, last = copies % 2, copies // 2
        rare, people = float(copies), float(total)
        # The likeliest number is near its expectation: no walk from one end to find it.
        top = min(last, int(rare * (2.0 * people - rare) / (4.0 * people)))
        while top > 0 and not _more(float(odd + 2 * (top - 1)), rare, people) > 1.0:
            top -= 1
        while top < last and _more(float(odd + 2 * top), rare, people) > 1.0:
            top += 1
        chance[top] = 1.0
        low, high, value = top, top, 1.0
        while low > 0:
            value *= 1.0 / _more(float(odd + 2 * (low - 1)), rare, people)
            if value < smallest:
                break
            low -= 1
            chance[low] = value
        value = 1.0
        while high < last:
            value *= _more(float(odd + 2 * high), rare, people)
            if value < smallest:
                break
            high += 1
            chance[high] = value
        at = (one - odd) // 2
        if at < low or at > high:
            found[s] = 0.0
            continue
        mine = chance[at] * (1.0 + 1e-8)
        unlikely, whole = 0.0, 0.0
        for i in range(low, high + 1):
            whole += chance[i]
            if chance[i] <= mine:
                unlikely += chance[i]
        found[s] = min(1.0, unlikely / whole)
