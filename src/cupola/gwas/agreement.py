"""Agreement on variants and alleles: a proposed list, compared by each cohort with its own.

A variant is the same if chromosome, position and name are. Its alleles may be swapped (the file
counts the other one) or, where that can be told, come from the other strand; both are put right at
the cohort. What cannot be put right is left out of the study, with a reason.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from cupola.gwas.bed import stretch
from cupola.gwas.files import Variants

# What a cohort finds of a proposed variant; those from ABSENT on leave it out.
SAME, SWAPPED, FLIPPED, FLIPPED_SWAPPED, ABSENT, MOVED, INCOMPATIBLE, REPEATED = range(8)
# What the total tells of a variant: in how many cohorts each of these is so.
TOLD = ("absent", "moved", "incompatible", "repeated", "flipped", "swapped")
_TELLS = ((ABSENT,), (MOVED,), (INCOMPATIBLE,), (REPEATED,), (FLIPPED, FLIPPED_SWAPPED),
          (SWAPPED, FLIPPED_SWAPPED))  # fmt: skip
REASONS = (
    "kept",
    "absent in a cohort",
    "at another position in a cohort (another genome build?)",
    "other alleles in a cohort",
    "more than once in a cohort (multi-allelic?)",
    "strand cannot be told (A/T or C/G)",
    "minor allele frequency",
    "missing calls",
    "Hardy-Weinberg equilibrium",
    "withheld by a cohort: a count below limits.least_cell",
)
KEPT, R_ABSENT, R_MOVED, R_ALLELES, R_REPEATED, R_STRAND, R_MAF, R_MISSING, R_HARDY = range(9)
R_CELL = 9
_COMPLEMENT = {"A": "T", "T": "A", "C": "G", "G": "C", "0": "0"}
_OTHER = np.array([_COMPLEMENT.get(chr(code), "?") for code in range(128)])


def compare(proposed: Variants, own: Variants, index: Index) -> tuple[np.ndarray, np.ndarray]:
    """Of each proposed variant its row in `own` (-1: none) and what was found."""
    row = index.find(proposed)
    status = np.full(len(proposed), ABSENT, np.uint8)
    status[row == Index.REPEATED] = REPEATED
    absent = np.flatnonzero(row == -1)
    if len(absent):
        elsewhere = [name in index.names for name in proposed.name[absent].tolist()]
        status[absent[elsewhere]] = MOVED
    found = row >= 0
    if found.all():
        mine = own[stretch(row)]
        status = _alleles(proposed.a1, proposed.a2, mine.a1, mine.a2)
    else:
        mine = own[row[found]]
        status[found] = _alleles(proposed.a1[found], proposed.a2[found], mine.a1, mine.a2)
    return np.where(status < ABSENT, row, -1), status


class Index:
    """Where a cohort's variants stand."""

    REPEATED = -2

    def __init__(self, own: Variants) -> None:
        self.own = own
        places = _places(own)
        self.order = None if _ascending(places) else np.argsort(places, kind="stable")
        self.places = places if self.order is None else places[self.order]

    @cached_property
    def crowded(self) -> dict[tuple[int, int, str], int]:
        """Rows of variants that share their place with others, by chromosome, position and name."""
        if self.order is None:
            return {}
        same = self.places[1:] == self.places[:-1]
        rows = self.order[np.append(same, False) | np.append(False, same)]
        found: dict[tuple[int, int, str], int] = {}
        for i, key in zip(rows.tolist(), _keys(self.own[rows])):
            found[key] = self.REPEATED if key in found else i
        return found

    @cached_property
    def names(self) -> set[str]:
        return {name for name in self.own.name.tolist() if name != "."}

    def find(self, proposed: Variants) -> np.ndarray:
        """Rows of proposed variants; -1 for none, REPEATED for more than one."""
        places = _places(proposed)
        rows = self._in_line(places, proposed)
        if rows is not None:
            return rows
        at = np.searchsorted(self.places, places)
        at[at == len(self.places)] = 0
        rows = at if self.order is None else self.order[at]
        found = (self.places[at] == places) & (self.own.name[rows] == proposed.name)
        found &= self.own.chromosome[rows] == proposed.chromosome  # whatever the positions are
        rows = np.where(found, rows, -1)
        if self.crowded:
            after = np.minimum(at + 1, len(self.places) - 1)
            shared = (self.places[at] == places) & (self.places[after] == places) & (after > at)
            for i, key in zip(np.flatnonzero(shared).tolist(), _keys(proposed[shared])):
                rows[i] = self.crowded.get(key, -1)
        return rows

    def _in_line(self, places: np.ndarray, proposed: Variants) -> np.ndarray | None:
        """Rows of variants that stand here as they are proposed, one after another, alone at their
        places; None if they do not."""
        if self.order is not None or len(places) == 0:
            return None
        first = int(np.searchsorted(self.places, places[0]))
        part = slice(first, first + len(places))
        same = np.array_equal(self.places[part], places) and alike(
            self.own.name[part], proposed.name
        )
        if not same or (self.own.chromosome[part] != proposed.chromosome).any():
            return None
        return np.arange(part.start, part.stop)


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of numpy strings are equal; quick where they are equally wide."""
    if a.dtype != b.dtype:
        return bool((a == b).all())
    codes = [np.ascontiguousarray(texts).view(np.uint32) for texts in (a, b)]
    return np.array_equal(codes[0], codes[1])


def _places(variants: Variants) -> np.ndarray:
    """Chromosome and position as one number, in their order."""
    return (variants.chromosome.astype(np.int64) << 48) + variants.position


def _ascending(places: np.ndarray) -> bool:
    """Whether no two variants share a place, and places are in order."""
    return bool((np.diff(places) > 0).all())


def _keys(variants: Variants) -> zip[tuple[int, int, str]]:
    return zip(variants.chromosome.tolist(), variants.position.tolist(), variants.name.tolist())


def _alleles(a1: np.ndarray, a2: np.ndarray, b1: np.ndarray, b2: np.ndarray) -> np.ndarray:
    """How a cohort's alleles (b1, b2) relate to the proposed ones (a1, a2)."""
    status = np.full(len(a1), SAME, np.uint8)
    if alike(a1, b1) and alike(a2, b2):
        return status
    other = np.flatnonzero((a1 != b1) | (a2 != b2))  # mostly none
    if len(other):
        status[other] = _other_alleles(a1[other], a2[other], b1[other], b2[other])
    return status


def _other_alleles(a1: np.ndarray, a2: np.ndarray, b1: np.ndarray, b2: np.ndarray) -> np.ndarray:
    c1, c2 = complements(b1), complements(b2)
    status = np.full(len(a1), INCOMPATIBLE, np.uint8)
    # From the weakest to the strongest: the last that holds counts.
    status[_fits(a1, a2, c2, c1)] = FLIPPED_SWAPPED
    status[_fits(a1, a2, c1, c2)] = FLIPPED
    status[_fits(a1, a2, b2, b1)] = SWAPPED
    status[_fits(a1, a2, b1, b2)] = SAME
    return status


def _fits(a1: np.ndarray, a2: np.ndarray, b1: np.ndarray, b2: np.ndarray) -> np.ndarray:
    """Whether alleles agree; one that a cohort has never seen ('0') agrees with any."""
    unseen = (b1 == "0") != (b2 == "0")
    exact = (a1 == b1) & (a2 == b2)
    half = ((a1 == b1) & (b2 == "0")) | ((a2 == b2) & (b1 == "0"))
    return exact | (unseen & half & (a1 != "0") & (a2 != "0"))


def complements(alleles: np.ndarray) -> np.ndarray:
    """The same alleles on the other strand, for single bases; '0' stays, others are '?'."""
    codes = np.ascontiguousarray(alleles).view(np.uint32).reshape(len(alleles), -1)
    single = (codes[:, 0] < len(_OTHER)) & ~codes[:, 1:].any(axis=1)
    return np.where(single, _OTHER[np.where(single, codes[:, 0], 0)], "?")


def strand_unknown(variants: Variants) -> np.ndarray:
    """A/T and C/G: the same letters on both strands."""
    return complements(variants.a1) == variants.a2


def digits(status: np.ndarray, sites: int) -> np.ndarray:
    """One integer a variant, whose digits in base sites + 1 count cohorts, in the order of TOLD."""
    marks = np.zeros((len(TOLD), 8), np.int64)  # by what was found
    for i, told in enumerate(_TELLS):
        marks[i, list(told)] = 1
    return (_powers(sites) @ marks)[status]


def most_of_digits(sites: int) -> int:
    """The largest number one cohort sends: two marks at most, both of the highest worth."""
    return int(_powers(sites)[-2:].sum())


def told(total: np.ndarray, sites: int) -> dict[str, np.ndarray]:
    """The counts behind summed digits."""
    whole = np.rint(total).astype(np.int64)
    some = np.flatnonzero(whole)  # mostly few
    counts = {name: np.zeros(len(whole), np.int64) for name in TOLD}
    for name, power in zip(TOLD, _powers(sites)):
        counts[name][some] = whole[some] // int(power) % (sites + 1)
    return counts


def reasons(counts: dict[str, np.ndarray]) -> np.ndarray:
    """Why each variant is left out, uint8; KEPT if it is not."""
    found = np.full(len(counts["absent"]), KEPT, np.uint8)
    for name, reason in (
        ("absent", R_ABSENT), ("moved", R_MOVED), ("incompatible", R_ALLELES),
        ("repeated", R_REPEATED),
    ):  # fmt: skip
        found[counts[name] > 0] = reason
    return found


def repeated(variants: Variants) -> np.ndarray:
    """Variants that stand more than once in a list."""
    twice = np.zeros(len(variants), bool)
    places = _places(variants)
    if _ascending(places):
        return twice
    seen: dict[tuple[int, int, str], int] = {}
    for i, key in enumerate(_keys(variants)):
        if key in seen:
            twice[[i, seen[key]]] = True
        seen[key] = i
    return twice


def _powers(sites: int) -> np.ndarray:
    return np.array([(sites + 1) ** i for i in range(len(TOLD))], np.int64)
