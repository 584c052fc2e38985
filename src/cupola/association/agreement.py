"""Agreement on variants and alleles: a proposed list, compared by each cohort with its own.

A variant is the same if chromosome, position and the pair of alleles are; names are labels. Alleles
may be swapped (the file counts the other one) or, where that can be told, come from the other
strand; both are put right at the cohort. What cannot be put right is left out of the study, with a
reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cupola.association.bed import stretch
from cupola.association.files import Variants
from cupola.association.texts import Texts

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
    "imputation quality (info)",
    "on X, Y or MT: dosages are tested on autosomes only",
    "absent in cohorts: a test in the others would tell of fewer than sum.minimum of them",
    "absent in cohorts: the others have too few people for a test",
)
KEPT, R_ABSENT, R_MOVED, R_ALLELES, R_REPEATED, R_STRAND, R_MAF, R_MISSING, R_HARDY = range(9)
R_CELL, R_INFO, R_NOT_AUTOSOME, R_APART, R_FEW = 9, 10, 11, 12, 13
WORD = 30  # cohorts whose marks make one number
_COMPLEMENT = np.full(256, ord("?"), np.uint8)  # of a letter
_COMPLEMENT[list(b"ATCG0")] = list(b"TAGC0")


@dataclass(frozen=True)
class Found:
    """What a cohort finds of proposed variants. row: in its own file (-1: not to be used), status:
    see above. named: whether the name is the same. taken: its own variants that the list has,
    also those that cannot be told apart."""

    row: np.ndarray
    status: np.ndarray
    named: np.ndarray
    taken: np.ndarray

    @property
    def renamed(self) -> int:
        """Variants in use that have another name here."""
        return int((~self.named & (self.row >= 0)).sum())


def compare(
    proposed: Variants, own: Variants, index: Index, before: np.ndarray | None = None
) -> Found:
    """Find proposed variants by place and alleles. A name is a label, with three uses left: it
    chooses among variants that are otherwise alike; a variant without a place has nothing else; and
    a name that stands somewhere else speaks for another genome build. before: rows that the list
    has found already (-1: none). A row is found once: a variant that a cohort withholds would
    else be asked for under many names, and what hides it averaged away."""
    row, crowded = index.find(proposed)
    status = np.full(len(proposed), ABSENT, np.uint8)
    named = np.zeros(len(proposed), bool)
    found = row >= 0
    here = stretch(row[found])
    mine, asked = own[here], proposed if found.all() else proposed[found]
    named[found] = mine.name == asked.name
    status[found] = _alleles(asked.a1, asked.a2, mine.a1, mine.a2)
    several = {}
    for i, rows in crowded:
        row[i], status[i], named[i], several[i] = _choice(proposed, i, own[rows], rows)
    nowhere = (proposed.chromosome == 0) | (proposed.position <= 0)
    status[nowhere & ~named & (status != REPEATED)] = ABSENT
    other = np.flatnonzero(~named & (status != REPEATED))
    if len(other):
        elsewhere = [name in index.names for name in proposed.name[other].tolist()]
        status[other[elsewhere]] = MOVED
    row = np.where(status < ABSENT, row, -1)
    again = _again(row, named, np.zeros(0, np.int64) if before is None else before)
    row[again], status[again] = -1, REPEATED
    alike = [rows for i, rows in several.items() if status[i] != MOVED]
    return Found(row, status, named, np.concatenate([row[row >= 0], *alike]))


def _again(row: np.ndarray, named: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Which proposed variants have a row that another one has, before them or by its name."""
    found = np.flatnonzero(row >= 0)
    last = int(before.max(initial=-1))
    here = row[found]
    if len(found) == 0 or (here[0] > last and bool((np.diff(here) > 0).all())):
        return found[:0]  # along the file, as mostly
    order = found[np.argsort(~named[found], kind="stable")]
    first = order[np.unique(row[order], return_index=True)[1]]
    fresh = first[~np.isin(row[first], before)]
    return np.setdiff1d(found, fresh)


def _choice(
    proposed: Variants, i: int, mine: Variants, rows: np.ndarray
) -> tuple[int, int, bool, np.ndarray]:
    """Which of several variants at one place is the i-th proposed one: row, status, whether it has
    that name; and all that could be."""
    one = proposed[np.full(len(rows), i)]
    status, named = _alleles(one.a1, one.a2, mine.a1, mine.a2), mine.name == one.name
    fits = status < ABSENT
    if not fits.any():
        return -1, INCOMPATIBLE, bool(named.any()), rows[:0]
    best = fits
    for better in (named, status <= SWAPPED):
        best = best & better if (best & better).any() else best
    at = int(np.flatnonzero(best)[0])
    if best.sum() > 1:
        return -1, REPEATED, bool(named[at]), rows[fits]
    return int(rows[at]), int(status[at]), bool(named[at]), rows[fits]


class Index:
    """Where a cohort's variants stand."""

    def __init__(self, own: Variants) -> None:
        self.own = own
        at = places(own)
        self.order = None if _ascending(at) else np.argsort(at, kind="stable")
        self.places = at if self.order is None else at[self.order]

    @cached_property
    def names(self) -> set[str]:
        found = set(self.own.name.tolist())
        found.discard(".")
        return found

    @cached_property
    def _unplaced(self) -> dict[tuple[int, int, str], list[int]]:
        """Rows of variants without a place, by name: there may be many."""
        found: dict[tuple[int, int, str], list[int]] = {}
        rows = np.flatnonzero((self.own.chromosome == 0) | (self.own.position <= 0))
        for i, key in zip(rows.tolist(), _keys(self.own[rows])):
            found.setdefault(key, []).append(i)
        return found

    def find(self, proposed: Variants) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
        """Rows that stand alone at the places of proposed variants, -1 for none; and where there
        are several: of which proposed variant, and their rows."""
        wanted = places(proposed)
        rows = self._in_line(wanted, proposed)
        if rows is not None:
            return rows, []
        at = np.searchsorted(self.places, wanted)
        at[at == len(self.places)] = 0
        rows = at if self.order is None else self.order[at]
        here = self.places[at] == wanted
        here &= self.own.chromosome[rows] == proposed.chromosome  # whatever the positions are
        rows = np.where(here, rows, -1)
        if self.order is None:
            return rows, []
        after = np.minimum(at + 1, len(self.places) - 1)
        shared = np.flatnonzero(here & (self.places[after] == wanted) & (after > at))
        rows[shared] = -1
        ends = np.searchsorted(self.places, wanted[shared], side="right")
        several = []
        for i, first, end in zip(shared.tolist(), at[shared].tolist(), ends.tolist()):
            some = self.order[first:end]
            if proposed.chromosome[i] == 0 or proposed.position[i] <= 0:
                key = next(_keys(proposed[slice(i, i + 1)]))
                some = np.array(self._unplaced.get(key, []), np.int64)
            if len(some):
                several.append((i, some))
        return rows, several

    def _in_line(self, wanted: np.ndarray, proposed: Variants) -> np.ndarray | None:
        """Rows of variants that stand here as they are proposed, one after another, alone at their
        places; None if they do not."""
        if self.order is not None or len(wanted) == 0:
            return None
        first = int(np.searchsorted(self.places, wanted[0]))
        part = slice(first, first + len(wanted))
        if not np.array_equal(self.places[part], wanted):
            return None
        if (self.own.chromosome[part] != proposed.chromosome).any():
            return None
        return np.arange(part.start, part.stop)


def places(variants: Variants) -> np.ndarray:
    """Chromosome and position as one number, in their order."""
    return (variants.chromosome.astype(np.int64) << 48) + variants.position


def _ascending(places: np.ndarray) -> bool:
    """Whether no two variants share a place, and places are in order."""
    return bool((np.diff(places) > 0).all())


def _keys(variants: Variants) -> zip[tuple[int, int, str]]:
    return zip(variants.chromosome.tolist(), variants.position.tolist(), variants.name.tolist())


def _alleles(a1: Texts, a2: Texts, b1: Texts, b2: Texts) -> np.ndarray:
    """How a cohort's alleles (b1, b2) relate to the proposed ones (a1, a2)."""
    status = np.full(len(a1), SAME, np.uint8)
    other = np.flatnonzero((a1 != b1) | (a2 != b2))  # mostly none
    if len(other):
        status[other] = _other_alleles(a1[other], a2[other], b1[other], b2[other])
    return status


def _other_alleles(a1: Texts, a2: Texts, b1: Texts, b2: Texts) -> np.ndarray:
    c1, c2 = complements(b1), complements(b2)
    status = np.full(len(a1), INCOMPATIBLE, np.uint8)
    # From the weakest to the strongest: the last that holds counts.
    status[_fits(a1, a2, c2, c1)] = FLIPPED_SWAPPED
    status[_fits(a1, a2, c1, c2)] = FLIPPED
    status[_fits(a1, a2, b2, b1)] = SWAPPED
    status[_fits(a1, a2, b1, b2)] = SAME
    return status


def _fits(a1: Texts, a2: Texts, b1: Texts, b2: Texts) -> np.ndarray:
    """Whether alleles agree; one that a cohort has never seen ('0') agrees with any."""
    unseen = (b1 == "0") != (b2 == "0")
    exact = (a1 == b1) & (a2 == b2)
    half = ((a1 == b1) & (b2 == "0")) | ((a2 == b2) & (b1 == "0"))
    return exact | (unseen & half & (a1 != "0") & (a2 != "0"))


def complements(alleles: Texts) -> Texts:
    """The same alleles on the other strand, for single bases; '0' stays, others are '?'."""
    found = np.full(len(alleles), ord("?"), np.uint8)
    single = np.flatnonzero(alleles.lengths == 1)
    found[single] = _COMPLEMENT[alleles.letters[alleles.places[single]]]
    return Texts.one_by_one(found, np.ones(len(found), np.int32))


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


def words(sites: int) -> int:
    """Numbers a variant that say which of so many cohorts lack it."""
    return -(-sites // WORD)


def marks(lacked: np.ndarray, site: int, sites: int) -> np.ndarray:
    """What a cohort adds to say which variants it lacks: a bit of its own, (variants, words)."""
    found = np.zeros((len(lacked), words(sites)), np.int64)
    found[lacked, site // WORD] = 1 << site % WORD
    return found


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


def left_out(reason: np.ndarray) -> dict[str, int]:
    """How many variants are left out, by reason in words. A new reason is a line in REASONS."""
    found = np.bincount(reason, minlength=len(REASONS)).tolist()
    return {words: n for words, n in zip(REASONS[1:], found[1:]) if n}


def repeated(variants: Variants) -> np.ndarray:
    """Variants that stand more than once in a list: place, name and alleles, on either strand."""
    twice = np.zeros(len(variants), bool)
    at = places(variants)
    order = np.argsort(at, kind="stable")
    same = np.diff(at[order]) == 0
    if not same.any():
        return twice
    crowded = order[np.append(same, False) | np.append(False, same)]
    some = variants[crowded]
    c1, c2 = complements(some.a1), complements(some.a2)
    seen: dict[object, int] = {}
    rows = zip(_keys(some), some.a1.tolist(), some.a2.tolist(), c1.tolist(), c2.tolist())
    for i, (key, a1, a2, b1, b2) in zip(crowded.tolist(), rows):
        alleles = tuple(sorted((a1, a2)))
        other = alleles if "?" in (b1, b2) else tuple(sorted((b1, b2)))
        whole = (key, min(alleles, other))
        if whole in seen:
            twice[[i, seen[whole]]] = True
        seen[whole] = i
    return twice


def _powers(sites: int) -> np.ndarray:
    return np.array([(sites + 1) ** i for i in range(len(TOLD))], np.int64)
