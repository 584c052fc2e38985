"""Disclosure control of an association study: what totals may tell about single people.

A cohort withholds a variant, not the whole question, where its own part would tell too much: few
effective people behind logistic weights, or a small count. It says so in a count, one number per
variant, which is told as a total, and the program leaves the variant. In place of its numbers it
adds random ones, as large as its bounds allow: zeros would leave the total of the other cohorts,
maybe of a single one. They are uniform on a grid that all numbers keep to, so that they cover the
last digit as well as the first. One person, who moves a number of the others by d, is told apart by
it with an advantage of at most d / B, by all numbers of a variant with the sum of these; B is
the bound, some 1 to 4 times the number of all people.
"""

from __future__ import annotations

import math
import secrets

import numpy as np

from cupola.association.study_choices import Study
from cupola.federation.message import Arrays, Declined, Question
from cupola.federation.site import SiteContext
from cupola.secure.durable_dict import Memory

# Effective people that are enough, whatever share of all they are: where cases are rare, carriers
# who are cases have hundreds of times the weight of others, and are what is looked for.
ENOUGH = 50
WITHHELD = "withheld"  # of an answer: which variants a cohort keeps back


# At the cohort


def thin(weights: np.ndarray, share: float) -> np.ndarray:
    """Variants whose weights stand for fewer effective people, (sum w)^2 / sum w^2, than a share of
    all, and fewer than are enough. weights: (variants, 3), their sum, that of their squares,
    people. Written without a division: nobody at all is not few."""
    total, squares, people = weights.T
    return total**2 < np.minimum(share * people, ENOUGH) * squares


def small_cells(arrays: Arrays, least: int, *more: np.ndarray) -> np.ndarray:
    """Variants with a count in 1 .. least - 1: copies of either allele (variants, groups, 2: of a1
    and of both), people by genotype, and more."""
    alleles = arrays["alleles"]
    cells = [alleles[..., 0], alleles[..., 1] - alleles[..., 0], *more]
    cells += [arrays["genotypes"]] if "genotypes" in arrays else []
    return np.logical_or.reduce([small(c, least).reshape(len(c), -1).any(axis=1) for c in cells])


def small(counts: np.ndarray, least: int) -> np.ndarray:
    """Which counts are too small to be told. Nobody is not few."""
    return (counts > 0) & (counts < least)


def without(site: SiteContext, question: Question, arrays: Arrays, withheld: np.ndarray) -> Arrays:
    """An answer that withholds some variants, and says which. Under masks all numbers are multiples
    of the noise's step: finer digits of a total would be those of the other cohorts."""
    rows, bounds = np.flatnonzero(withheld), {n: s.bound for n, s in question.expects.items()}
    if site.hidden is not None:
        arrays = {n: on_grid({n: a}, _step(bounds[n]))[n] for n, a in arrays.items()}
    if len(rows):
        arrays = {name: array.copy() for name, array in arrays.items()}
        for name, array in arrays.items():
            # Without masks the coordinator knows whose numbers these are: noise would hide nothing.
            array[rows] = 0
            if site.hidden is not None:
                drawn = _drawn(site, question, name, array[rows].size) * _step(bounds[name])
                drawn = drawn if array.dtype.kind == "f" else np.floor(drawn)
                array[rows] = drawn.reshape(array[rows].shape).astype(array.dtype)
    return {**arrays, WITHHELD: withheld.astype(np.int8)}


def _step(bound: float | None) -> float:
    """What 2^52 of are at most a bound, and more than half of it: a power of two."""
    return math.ldexp(1.0, math.frexp(bound or 0.0)[1] - 53)


def _drawn(site: SiteContext, question: Question, name: str, size: int) -> np.ndarray:
    """Whole numbers from -2^52 to 2^52 - 1, each as likely, which nobody outside can foresee at a
    real site."""
    if site.secret_seed is not None:
        draw = site.generator(f"withheld {name}", question.step)
        return draw.integers(-(2**52), 2**52, size).astype(np.float64)
    drawn = np.frombuffer(secrets.token_bytes(8 * size), np.uint64) >> np.uint64(11)
    return drawn.astype(np.float64) - 2.0**52


def on_grid(arrays: Arrays, grid: float) -> Arrays:
    """Sums rounded to multiples of a number; counts stay."""
    if not grid:
        return arrays
    return {n: np.rint(a / grid) * grid if a.dtype.kind == "f" else a for n, a in arrays.items()}


# In the program


def told_of(sums: Arrays) -> tuple[Arrays, np.ndarray]:
    """A total without the variants that some cohort withholds (zero: what stands there means
    nothing), and which they are."""
    rows = len(next(iter(sums.values())))
    if WITHHELD not in sums:
        return sums, np.zeros(rows, bool)
    withheld = np.rint(sums[WITHHELD]) > 0
    rest = {name: array for name, array in sums.items() if name != WITHHELD}
    if not withheld.any():
        return rest, withheld
    shaped = {n: withheld.reshape(-1, *[1] * (a.ndim - 1)) for n, a in rest.items()}
    return {n: np.where(shaped[n], 0, a) for n, a in rest.items()}, withheld


# In words


def described(study: Study, people: int, numbers: int) -> list[str]:
    """The limits that are on in a study, a line each. numbers: per variant, of so many people."""
    limits, found = study.limits, []
    if len(study.trait.columns) > 1:
        found.append(
            f"{len(study.trait.columns)} traits of the same people: their totals differ by those "
            "who have one and not another"
            + (
                f"; who is like fewer than {limits.least_cell} in all of them takes no part"
                if limits.least_cell
                else ", however few (limits.least_cell = 0)"
            )
        )
    if study.least_cohorts is not None:
        found.append(
            f"variants in at least {study.least_cohorts} cohorts are tested there: all parties "
            "learn which cohort lacks which; sums over columns and numbers of people of the "
            "cohorts that lack one follow by subtraction: of at least sum.minimum cohorts under "
            "masked sums, of single ones under plain sums"
        )
    if study.test == "logistic":
        found.append(
            f"a cohort withholds a variant whose weights leave below {limits.effective:.0%} of its "
            f"people effective, and below {ENOUGH}"
        )
    if study.test == "mixed":
        found.append(
            f"a cohort refuses sums with a vector of which below {limits.effective / 2:.0%} of its "
            f"people are effective, and below {ENOUGH} (a trait with outliers, say), and takes "
            f"part with {limits.people} tested people at least"
        )
        found.append(
            f"markers are multiplied by {study.mixed.vectors:,} vectors over people at most: what "
            "they have in common is known on a space of so many dimensions, of as many as people"
        )
    if study.components is not None:
        most = study.components.sums * study.components.block
        found.append(
            f"components: a cohort takes part with {limits.people} people at least, "
            f"{-(-most // limits.directions):.0f} for {most} directions (sums times block); nobody "
            f"uses a marker of which some cohort has 1 to {max(0, limits.carriers - 1)} copies of "
            "the rarer allele"
        )
    if limits.least_cell:
        found.append(
            f"a cohort withholds a variant with a count of 1 to {limits.least_cell - 1} (alleles "
            "or genotypes, in cases, controls or others"
            + ("; people tested without a call)" if study.regression else ")")
        )
    else:
        found.append("counts of any size are told (limits.least_cell = 0)")
        if study.regression:
            found.append(
                "who alone has no call at a variant: covariates and trait follow from the totals; "
                "who alone is not tested: genotypes"
            )
    if study.regression:
        what = "marker" if study.test == "mixed" else "variant"
        found.append(
            f"at most {numbers:,} numbers per {what} are counted of {people:,} people: "
            f"{numbers / max(1, people):.2f} a person"
            + ("; information matrices tell more" if study.test == "logistic" else "")
        )
        found += [f"totals about variants {rounded(study)}"] if limits.grid else []
    if study.whole_genome is not None:
        block = study.whole_genome.size(people)
        found.append(
            f"the linkage of markers in blocks of {block} is told, over all people; markers with "
            f"fewer than {study.whole_genome.carriers} copies of the rarer allele in a cohort are "
            "left out, predictions of people stay with their cohort"
        )
    if study.clump:
        found.append(
            "of pairs near hits, haplotypes are counted; a cohort withholds those with a variant "
            "of fewer than 50 minor alleles, or of more partners than a fifth of its people"
        )
    if study.regression and limits.outliers:
        found.append(
            f"covariates of people beyond {limits.outliers:g} times the usual length are shortened"
        )
    return found


def rounded(study: Study) -> str:
    """What a question says of its protection."""
    grid = study.limits.grid
    return f"rounded to multiples of {grid:g}" if grid else "none"


# Over all studies of a data set


class Released:
    """The book of numbers per variant and person that a data set has told, over all studies.

    study: whom it is opened for. numbers: what that study may tell per variant. most: numbers per
    person, in all. A study is entered once, as a whole, before it is told anything: what decides
    are the plan and the number of people, which the coordinator knows. Restarts change nothing.
    """

    def __init__(self, memory: Memory, study: str, numbers: int, most: float) -> None:
        self.memory, self._study, self._numbers, self._most = memory, study, numbers, most

    def entries(self) -> dict[str, float]:
        """Numbers per person, by study."""
        return {str(study): float(share) for study, share in self.memory.listed("")}

    def charge(self, people: int, numbers: int | None = None, part: str = "") -> None:
        """Enter this study, durably; Declined if it would tell more than is allowed. One that was
        entered with fewer numbers (joined anew, with another plan) is entered with these.
        part: of the study, with numbers of its own and beside all others."""
        name = f"{self._study}\n{part}" if part else self._study  # no study is named so
        entries = self.entries()
        share = (self._numbers if numbers is None else numbers) / max(1, people)
        before = entries.get(name, 0.0)
        if share <= before:
            return
        if sum(entries.values()) - before + share > self._most:
            raise Declined("too-many-numbers-released")
        self.memory.setdefault(str(len(self.memory.listed(""))), [name, share])

    def close(self) -> None:
        self.memory.close()
