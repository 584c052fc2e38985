"""What a cohort computes for principal components, and what it refuses by itself.

Z is the matrix of people and markers: centred genotypes over sqrt(2 p q), 0 without a call. A
cohort adds up Z'Z V over its people, a limited number of times, and in the end computes everybody's
scores, which stay with it.
"""

from __future__ import annotations

import numpy as np

from cupola.association.component_choices import Components
from cupola.association.enough_people import require_own_people
from cupola.association.site import Site, guarded
from cupola.association.structure.centred import Centred
from cupola.association.structure.component_picture import scatter
from cupola.association.structure.markers import recalled, told_about
from cupola.association.structure.projection import score_table
from cupola.association.tasks import smallest
from cupola.federation.message import Arrays, Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

DIRECTIONS, SCORES = "gwas directions", "gwas scores"
NAME = "components"
TABLE, PICTURE = "components.tsv", "components.svg"
BINS, WIDEST = 20, 4.0  # of the picture of all: squares a side, and how far it reaches
FEW = 5  # people in a square that are not told, whatever the study's limits are
_UNIT = 1.001  # length of a direction, and rounding


def choices(own: Site) -> Components:
    """The cohort's own copy of what was agreed; refuses if it has too few people for it."""
    if own.study is None or own.study.components is None:
        raise Declined("question-not-understood")
    require_own_people(own.study, own.cohort)
    return own.study.components


def standardised(made: Centred, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sqrt(2 p q) of markers as a column, and vectors (markers, r), checked, over it."""
    if vectors.ndim != 2 or len(vectors) != len(made) or not np.isfinite(vectors).all():
        raise Declined("question-not-understood")
    scale = np.sqrt(made.mean * (1 - made.mean / 2))[:, None]
    return scale, vectors.astype(np.float64) / scale


@task(DIRECTIONS)
@guarded
def directions(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Z'Z V, summed over this cohort's people; at most as often as the study says."""
    agreed, v = choices(own), question.arrays["v"]
    if v.shape[1] > agreed.block or (np.sqrt((v * v).sum(axis=0)) > _UNIT).any():
        raise Declined("question-not-understood")
    if own.released is not None:  # directions of another study, with another seed, are more of them
        own.released.charge(len(told_about(own)), agreed.sums * agreed.block, NAME)
    own.count(question, DIRECTIONS, np.zeros(1, int), 1, agreed.sums)
    made = recalled(own, site, question)
    scale, moved = standardised(made, v)
    return Contribution({"product": made.gram(moved) / scale})


@task(SCORES)
@guarded
def scores(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Everybody's scores, which stay here; their sums of squares, and with 'density' how many
    people are in each square of the first two."""
    agreed, told = choices(own), question.arrays["loadings"]
    if told.shape[1] != agreed.count:
        raise Declined("question-not-understood")
    own.count(question, SCORES, np.zeros(1, int), 1, 1)
    made = recalled(own, site, question, np.flatnonzero(own.cohort.loaded))
    found = made.times(standardised(made, told)[1])
    site.keep(question, {**site.recall(question), "scores": found})
    own.take_scores({"scores": found})
    loaded = np.flatnonzero(own.cohort.loaded)
    own.keep_table(TABLE, score_table([own.cohort.person[i] for i in loaded], found))
    own.keep_table(PICTURE, scatter(found, own.files.name))
    summed = found[np.isin(made.people, told_about(own))]
    arrays: Arrays = {"squares": (summed**2).sum(axis=0)}
    if "density" in question.expects:
        if not agreed.density:
            raise Declined("question-not-understood")
        least = max(FEW, own.limits.least_cell)
        counts = density(summed, int(question.options["people"]), least)
        arrays["density"] = counts.astype(smallest(question.expects["density"]))
    return Contribution(arrays)


def density(found: np.ndarray, people: int, least: int) -> np.ndarray:
    """People in each square of the first two components, in standard deviations; the outermost
    squares hold whoever is farther out. Fewer than `least` in a square are not told."""
    at = (found[:, :2] * np.sqrt(people) + WIDEST) * (BINS / (2 * WIDEST))
    row, column = np.clip(np.floor(at), 0, BINS - 1).astype(np.int64).T
    counts = np.bincount(row * BINS + column, minlength=BINS * BINS).reshape(BINS, BINS)
    return np.where(counts < least, 0, counts)
