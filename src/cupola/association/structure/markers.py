"""Which variants of a list are markers, and how cohorts are told.

The mean of a marker is that of all people who are counted. Without a call a person counts as the
mean. A cohort with few copies of a marker's rarer allele withholds it, if the study asks for that:
sums over its carriers would be sums over few people. Then no cohort uses the marker.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cupola.association.agreed_variants import everywhere
from cupola.association.agreement import KEPT
from cupola.association.cohort import Cohort
from cupola.association.design import AUTOSOME, calls
from cupola.association.kernels import genotype_counts
from cupola.association.limits import WITHHELD, small, without
from cupola.association.quality import pooled
from cupola.association.questions import Chunk
from cupola.association.site import Site, guarded
from cupola.association.structure.centred import Centred
from cupola.association.tasks import counted, listed_rows
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec
from cupola.federation.program import State
from cupola.federation.site import SiteContext, task

if TYPE_CHECKING:
    from cupola.association.study_program import Association

MARKERS = "gwas markers"
LAST = 22  # chromosome of which there are markers
_BLOCK = 4096


@dataclass(frozen=True)
class Markers:
    """index: rows of the list. chromosome, frequency (of a1) and mean (copies) of each."""

    index: np.ndarray
    chromosome: np.ndarray
    frequency: np.ndarray
    whole: int

    @classmethod
    def of(cls, program: Association, state: State, maf: float) -> Markers:
        """The markers of a study after its filters: those with at least this minor frequency that
        no cohort lacks."""
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

    def most_squares(self, people: int) -> np.ndarray:
        """The most that squares of a marker add up to at one cohort: n 4pq of the people counted
        in all, and a little slack for rounding."""
        return 1.01 * people * self.most + 10

    def question(self, people: int, what: str, maf: float, carriers: int = 0) -> Question:
        """Tells cohorts the markers; asks for the sums of their squares over all people counted.
        carriers: from which number on copies of the rarer allele are not few at a cohort; 0: any.
        """
        chunk, k = Chunk(0, self.whole, AUTOSOME, self.index), len(self)
        expects = {"squares": Spec((k,), "float", 1.01 * people + 10)}
        if carriers:
            expects[WITHHELD] = Spec((k,), "int", 1)
        return Question(
            MARKERS,
            {**chunk.arrays(), "mean": self.mean},
            {"start": 0, "stop": self.whole, "kind": AUTOSOME, "what": what, "maf": maf,
             "carriers": carriers},
            expects,
            reveals="per marker, the variance of the genotype over all people"
            + ("; in how many cohorts few people carry it" if carriers else ""),
        )  # fmt: skip


def told_about(own: Site) -> np.ndarray:
    """Whom sums over a genome are about: those counted, as in all totals. With a few more people,
    who are not tested, the difference to the test's sums would be their genotypes."""
    return np.flatnonzero(counted(own.cohort, own.limits.least_cell))


@task(MARKERS)
@guarded
def markers(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Remember markers and their means; sums of squares of the centred genotypes. A study has one
    set of markers for each purpose."""
    what, least = question.options["what"], int(question.options["carriers"])
    local, swapped = listed_rows(own, site, question)
    mean = question.arrays["mean"].astype(np.float64)
    if mean.shape != local.shape or not ((mean > 0) & (mean < 2)).all():
        raise Declined("question-not-understood")
    told = hashlib.blake2b(question.arrays["variants"].tobytes() + mean.tobytes()).hexdigest()
    own.pin(("markers", what), [question.options["maf"], least, told])
    kept: Arrays = {"marker_row": local.astype(np.int32), "marker_swapped": swapped,
                    "marker_mean": mean}  # fmt: skip
    site.keep(question, {**site.recall(question), **kept})
    people = told_about(own)
    made = Centred(own.cohort, local, swapped, mean, people)
    arrays: Arrays = {"squares": made.squares()}
    if WITHHELD in question.expects:
        arrays = without(
            site, question, arrays, small(rarer_copies(own.cohort, local, people), least)
        )
    return Contribution(arrays)


def rarer_copies(cohort: Cohort, local: np.ndarray, people: np.ndarray) -> np.ndarray:
    """Copies of each autosomal variant's rarer allele with these people. local: rows of the
    cohort's files; whether alleles are swapped there makes no difference."""
    chosen, found = np.zeros((1, len(cohort.person)), bool), np.zeros(len(local), np.int64)
    chosen[0, people] = True
    for start in range(0, len(local), _BLOCK):
        part = slice(start, start + _BLOCK)
        same = np.zeros(len(local[part]), bool)
        two, one, none = genotype_counts(calls(cohort, local[part], same, AUTOSOME), chosen)[:, 0].T
        found[part] = np.minimum(2 * two + one, 2 * none + one)
    return found


def recalled(
    own: Site, site: SiteContext, question: Question, people: np.ndarray | None = None
) -> Centred:
    """The markers that this cohort was told; of them those that a question keeps ('kept', a bit
    each), if it says so: the same ones in all questions of a purpose. people: of the .fam file; all
    that are counted without."""
    kept = site.recall(question)
    if "marker_row" not in kept:
        raise Declined("variants-not-agreed")
    chosen = told_about(own) if people is None else people
    local, swapped = kept["marker_row"].astype(np.int64), kept["marker_swapped"]
    mean, bits = kept["marker_mean"], question.arrays.get("kept")
    if bits is not None:
        told = hashlib.blake2b(bits.tobytes()).hexdigest()
        own.pin(("kept markers", question.options["what"]), told)
        some = np.unpackbits(bits, count=len(local)).astype(bool)
        local, swapped, mean = local[some], swapped[some], mean[some]
    return Centred(own.cohort, local, swapped, mean, chosen)
