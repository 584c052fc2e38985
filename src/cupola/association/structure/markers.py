"""Which variants of a list are markers, and how cohorts are told.

The mean of a marker is that of all people loaded. Without a call a person counts as the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cupola.association.agreed_variants import everywhere
from cupola.association.agreement import KEPT
from cupola.association.design import AUTOSOME
from cupola.association.quality import pooled
from cupola.association.questions import Chunk
from cupola.association.site import Site, guarded
from cupola.association.structure.centred import Centred
from cupola.association.tasks import listed_rows
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec
from cupola.federation.program import State
from cupola.federation.site import SiteContext, task

if TYPE_CHECKING:
    from cupola.association.study_program import Association

MARKERS = "gwas markers"
LAST = 22  # chromosome of which there are markers


@dataclass(frozen=True)
class Markers:
    """index: rows of the list. chromosome, frequency (of a1) and mean (copies) of each."""

    index: np.ndarray
    chromosome: np.ndarray
    frequency: np.ndarray
    whole: int

    @classmethod
    def of(cls, program: Association, state: State, maf: float) -> Markers:
        """The markers of a study after its filters: those with at least this minor frequency."""
        variants = program.variants(state)
        a1, both = pooled(state.arrays["alleles"])
        told = (state.arrays["reason"] == KEPT) & everywhere(state) & (both > 0)
        told &= (variants.chromosome >= 1) & (variants.chromosome <= LAST)
        frequency = np.where(told, a1, 0) / np.maximum(both, 1)
        minor = np.minimum(frequency, 1 - frequency)
        index = np.flatnonzero(told & (minor > 0) & (minor >= maf))
        return cls(index, variants.chromosome[index], frequency[index], len(variants))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: np.ndarray) -> Markers:
        parts = (self.index[chosen], self.chromosome[chosen], self.frequency[chosen])
        return Markers(*parts, self.whole)

    @property
    def mean(self) -> np.ndarray:
        return 2 * self.frequency

    @property
    def scale(self) -> np.ndarray:
        """sqrt(2 p q)."""
        return np.sqrt(2 * self.frequency * (1 - self.frequency))

    @property
    def most(self) -> np.ndarray:
        """The most that squares of a marker add up to, a person: all people have two equal copies
        then."""
        return 4 * self.frequency * (1 - self.frequency)

    def question(self, people: int, what: str, maf: float) -> Question:
        """Tells cohorts the markers; asks for the sums of their squares over all people loaded."""
        chunk = Chunk(0, self.whole, AUTOSOME, self.index)
        return Question(
            MARKERS,
            {**chunk.arrays(), "mean": self.mean},
            {"start": 0, "stop": self.whole, "kind": AUTOSOME, "what": what, "maf": maf},
            {"squares": Spec((len(self),), "float", 1.01 * people + 10)},
            reveals="per marker, the variance of the genotype over all people",
        )


@task(MARKERS)
@guarded
def markers(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Remember markers and their means; sums of squares of the centred genotypes."""
    own.pin(("markers", question.options["what"]), question.options["maf"])
    local, swapped = listed_rows(own, site, question)
    mean = question.arrays["mean"].astype(np.float64)
    if mean.shape != local.shape or not ((mean > 0) & (mean < 2)).all():
        raise Declined("question-not-understood")
    kept: Arrays = {"marker_row": local.astype(np.int32), "marker_swapped": swapped,
                    "marker_mean": mean}  # fmt: skip
    site.keep(question, {**site.recall(question), **kept})
    made = Centred(own.cohort, local, swapped, mean, np.flatnonzero(own.cohort.loaded))
    return Contribution({"squares": made.squares()})


def recalled(
    own: Site, site: SiteContext, question: Question, people: np.ndarray | None = None
) -> Centred:
    """The markers that this cohort was told. people: of the .fam file; all loaded ones without."""
    kept = site.recall(question)
    if "marker_row" not in kept:
        raise Declined("variants-not-agreed")
    chosen = np.flatnonzero(own.cohort.loaded) if people is None else people
    rows = (kept["marker_row"].astype(np.int64), kept["marker_swapped"])
    return Centred(own.cohort, *rows, kept["marker_mean"], chosen)
