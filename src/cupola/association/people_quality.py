"""Quality of people, as PLINK's --missing, --het and --check-sex see it, by pooled frequencies; and
how far a cohort's own frequencies are from the pooled ones.

A cohort computes it of its own people and keeps the table. What it tells are counts: people by
share of missing calls and by inbreeding coefficient F, people whose sex does not fit, variants far
from the pooled frequency. F = (O - E) / (N - E): of N calls O are homozygous, and E = sum of 1 -
2pq are expected. On X, F above 0.8 looks male and below 0.2 female.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cupola.association.cohort import Cohort
from cupola.association.design import AUTOSOME, SEX_X
from cupola.association.files import X
from cupola.association.limits import small
from cupola.association.site import Site, guarded
from cupola.association.tasks import listed_rows, sized
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

PEOPLE_QUALITY = "gwas people quality"
TABLE = "people.tsv"
MISSING = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)  # edges of shares of missing calls
F = tuple(round(-0.2 + 0.02 * i, 2) for i in range(21))  # edges of inbreeding coefficients
FAR = (0.05, 0.1, 0.2)  # distances from the pooled frequency
MALE, FEMALE = 0.8, 0.2  # F on X beyond which a sex is told
_NUMBERS = 1 << 22  # dosages in memory at once


@dataclass(frozen=True)
class PeopleQuality:
    """Over the people loaded: share of all calls missing; of the autosomes homozygous calls,
    expected ones, all, F; the same F on X (NaN without calls); sex by .fam and by X (1 male, 2
    female, 0 unknown). far: variants by distance from the pooled frequency, beyond each of FAR."""

    person: list[str]
    missing: np.ndarray
    homozygous: np.ndarray
    expected: np.ndarray
    calls: np.ndarray
    f: np.ndarray
    f_x: np.ndarray
    sex: np.ndarray
    sex_x: np.ndarray
    far: np.ndarray

    @property
    def problem(self) -> np.ndarray:
        """As PLINK: where the two sexes differ, or one of them is unknown."""
        return (self.sex != self.sex_x) | (self.sex == 0)

    def lines(self) -> bytes:
        """The table, which stays with the cohort."""
        head = "FID\tIID\tF_MISS\tO_HOM\tE_HOM\tN_NM\tF\tPEDSEX\tSNPSEX\tSTATUS\tF_X"
        rows = [head]
        for i, person in enumerate(self.person):
            known = not np.isnan(self.f_x[i])
            status = "NA" if not known else "PROBLEM" if self.problem[i] else "OK"
            cells = [*person.split(" ", 1), f"{self.missing[i]:.4g}", int(self.homozygous[i]),
                     f"{self.expected[i]:.6g}", int(self.calls[i]), _text(self.f[i]),
                     int(self.sex[i]), int(self.sex_x[i]), status, _text(self.f_x[i])]  # fmt: skip
            rows.append("\t".join(map(str, cells)))
        return ("\n".join(rows) + "\n").encode()


def _text(value: float) -> str:
    return "NA" if np.isnan(value) else f"{value:.4g}"


@task(PEOPLE_QUALITY)
@guarded
def people_quality(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Counts of people and variants; the table stays here."""
    local, swapped = _listed(own, site, question)
    # At ever other frequencies counts of people would tell of whom they are.
    own.count(question, PEOPLE_QUALITY, np.zeros(1, int), 1, 1)
    frequency = question.arrays["frequency"].astype(np.float64)
    if frequency.shape != local.shape or not ((frequency >= 0) & (frequency <= 1)).all():
        raise Declined("question-not-understood")
    found = computed(own.cohort, local, swapped, frequency)
    own.keep_table(TABLE, found.lines())
    told = ~np.isnan(found.f_x)
    arrays = {
        "missing": _histogram(found.missing, MISSING),
        "f": _histogram(found.f, F),
        "sex": np.array([told.sum(), (told & found.problem).sum()], np.int64),
    }
    hidden = {name: small(a, own.limits.least_cell) for name, a in arrays.items()}
    arrays = {name: np.where(hidden[name], 0, a) for name, a in arrays.items()}
    held_back = int(any(cells.any() for cells in hidden.values()))
    extra = {"far": found.far, "held_back": np.array([held_back], np.int64)}
    return sized(site, question, {**arrays, **extra})


def _listed(own: Site, site: SiteContext, question: Question) -> tuple[np.ndarray, np.ndarray]:
    """Autosomes and X come in one question, which is told of as two chunks."""
    parts = []
    for name, kind in (("variants", AUTOSOME), ("on_x", SEX_X)):
        if name in question.arrays:
            arrays = {"variants": question.arrays[name]}
            options = {**question.options, "kind": kind}
            parts.append(listed_rows(own, site, replace(question, arrays=arrays, options=options)))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _histogram(values: np.ndarray, edges: tuple[float, ...]) -> np.ndarray:
    """People below the first edge, between two, from the last on; nobody without a value."""
    told = values[~np.isnan(values)]
    place = np.searchsorted(np.array(edges), told, "right")
    return np.bincount(place, minlength=len(edges) + 1)


def computed(
    cohort: Cohort, local: np.ndarray, swapped: np.ndarray, frequency: np.ndarray
) -> PeopleQuality:
    """frequency: of the list's a1, over the pooled people."""
    people = np.flatnonzero(cohort.loaded)
    on_x = cohort.variants.chromosome[local] == X
    sums = np.zeros((2, 3, len(people)))  # autosomes and X: homozygous, expected, calls
    far = np.zeros(len(FAR), np.int64)
    size = max(1, _NUMBERS // max(1, len(cohort.person)))
    for start in range(0, len(local), size):
        part = slice(start, start + size)
        dosage = cohort.bed.dosages(local[part])[:, people]
        dosage[swapped[part]] = 2 - dosage[swapped[part]]
        told = ~np.isnan(dosage)
        whole = np.rint(np.where(told, dosage, 1))
        homozygous = told & (whole != 1)
        p = frequency[part]
        expected = told * (1 - 2 * p * (1 - p))[:, None]
        for which, rows in enumerate((~on_x[part], on_x[part])):
            for k, values in enumerate((homozygous, expected, told)):
                sums[which, k] += values[rows].sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mine = np.where(told, dosage, 0).sum(axis=1) / (2 * told.sum(axis=1))
            apart = np.abs(mine - p)[~on_x[part]]
            far += np.array([(apart > edge).sum() for edge in FAR])
    with np.errstate(invalid="ignore", divide="ignore"):
        f, f_x = ((o - e) / (n - e) for o, e, n in sums)
        calls = sums[:, 2].sum(axis=0)
    sex = np.select([cohort.male[people], cohort.female[people]], [1, 2], 0)
    f_x = np.where(sums[1, 2] > 0, f_x, np.nan)
    with np.errstate(invalid="ignore"):
        sex_x = np.select([f_x > MALE, f_x < FEMALE], [1, 2], 0)
    names = [cohort.person[i] for i in people.tolist()]
    missing = 1 - calls / max(1, len(local))
    homozygous, expected, told = sums[0]
    facts = (missing, homozygous, expected, told, f, f_x, sex, sex_x, far)
    return PeopleQuality(names, *facts)
