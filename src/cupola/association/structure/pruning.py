"""Pruning of markers by what they have in common, as PLINK 1.9's `--indep-pairwise` in variants.

A window of markers moves along a chromosome. As long as two of it have r^2 above the threshold, one
is removed: that with the rarer minor allele, of equals the later one. The sums are a cohort's
products of centred genotypes of near markers; r^2 = (x_i'x_j)^2 / (x_i'x_i x_j'x_j) over all
people. Where a call is missing it counts as the mean, so that with missing calls r^2 is not quite
PLINK's, who leaves out the people without one of both.

What products of near markers tell: linkage. Of a marker with few carriers they would be these
people's genotypes, and of very many partners a block of everybody's. So no cohort tells products of
markers of which it has a few copies of the rarer allele, nor of more partners than a fifth of its
people (`enough_people`), nor of any pair twice.
"""

from __future__ import annotations

import numpy as np

from cupola.association.component_choices import Prune
from cupola.association.limits import small
from cupola.association.linkage_counts import LEAST_MINOR
from cupola.association.site import Site, guarded
from cupola.association.structure.centred import Centred
from cupola.association.structure.component_tasks import choices
from cupola.association.structure.markers import rarer_copies, recalled
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

PRUNING = "gwas pruning"
BLOCK = 4096  # markers of a question
_NUMBERS = 1 << 22  # in memory at once


# At the cohort


@task(PRUNING)
@guarded
def pruning(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Products of each marker with those after it in a window, summed over people."""
    prune = choices(own).prune
    if prune is None or question.options["what"] != PRUNING or "kept" not in question.arrays:
        raise Declined("question-not-understood")
    made, start = recalled(own, site, question), int(question.options["start"])
    stop = min(start + BLOCK, len(made))
    if start % BLOCK or not 0 <= start < stop:
        raise Declined("question-not-understood")
    own.count(question, PRUNING, np.arange(start, stop), len(made), 1)
    # Of all markers, since those of the next question are among the partners.
    if (PRUNING not in own.made) and small(
        rarer_copies(own.cohort, made.local, made.people), LEAST_MINOR
    ).any():
        raise Declined("few-carriers")
    own.made[PRUNING] = True
    return Contribution({"products": products(made, start, stop, prune.window)})


def along(chromosome: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Markers in their order on the genome; of those at one place in that of the list."""
    return np.lexsort((position, chromosome))


def products(made: Centred, start: int, stop: int, window: int) -> np.ndarray:
    """(stop - start, window - 1): of each marker, along the genome, with the next ones; 0 where
    those are on another chromosome."""
    variants = made.cohort.variants
    order = along(variants.chromosome[made.local], variants.position[made.local])
    chromosome, ahead = variants.chromosome[made.local][order], window - 1
    found = np.zeros((stop - start, ahead))
    size = max(1, min(2 * window, _NUMBERS // max(1, len(made.cohort.person))))
    for first in range(start, stop, size):
        last = min(first + size, stop)
        end = min(last + ahead, len(made))
        rows = made.rows(order[first:end])
        pairs = rows[: last - first] @ rows.T
        for i in range(first, last):
            beside = min(ahead, len(made) - 1 - i)
            same = chromosome[i + 1 : i + 1 + beside] == chromosome[i]
            own = pairs[i - first, i + 1 - first : i + 1 + beside - first]
            found[i - start, :beside] = np.where(same, own, 0.0)
    return found


# In the program


def linked(products: np.ndarray, squares: np.ndarray, start: int, r2: float) -> np.ndarray:
    """Which pairs are above r^2. squares: x_i'x_i of all markers, along the genome."""
    rows, ahead = products.shape
    place = start + np.arange(rows)[:, None]
    after = np.minimum(place + 1 + np.arange(ahead), len(squares) - 1)
    return products * products > r2 * (squares[place] * squares[after])


def independent(
    linked: np.ndarray, minor: np.ndarray, chromosome: np.ndarray, prune: Prune
) -> np.ndarray:
    """Which markers are left, along the genome. linked: (markers, window - 1). minor: frequency."""
    left = np.ones(len(minor), bool)
    partners = {i: (np.flatnonzero(linked[i]) + i + 1).tolist()
                for i in np.flatnonzero(linked.any(axis=1)).tolist()}  # fmt: skip
    ends = np.flatnonzero(np.diff(chromosome, append=-1)) + 1
    begin = 0
    for end in ends.tolist():
        for first in range(begin, end, prune.step):
            last = min(first + prune.window, end)
            _thin(range(first, last), partners, left, minor)
            if last == end:
                break
        begin = end
    return left


def _thin(
    window: range, partners: dict[int, list[int]], left: np.ndarray, minor: np.ndarray
) -> None:
    """In passes along the window; in each a marker removes, or gives way to, one other at most."""
    again = True
    while again:
        again = False
        for i in window:
            if i not in partners or not left[i]:
                continue
            j = next((j for j in partners[i] if j < window.stop and left[j]), None)
            if j is None:
                continue
            again = True
            left[i if minor[i] < (1 - 2.0**-44) * minor[j] else j] = False
