"""Clumping of hits: which pairs of variants cohorts are asked about, after the tests.

An index variant has p below p1; its partners are near it and have p below p2. Sites repeat this
choice bit for bit, and p is a matter of logarithms and special functions. So it is made on the
square of z or t (or chi-square) against a constant, the normal distribution's, cut to four digits:
p of t is never below it. `clumps` looks at p.

Regions are windows of index variants that overlap. All pairs of a region are in one question, so
that a cohort sees how many partners a variant has, and no variant is in two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.association import chi_square, pvalues
from cupola.association.agreed_variants import everywhere
from cupola.association.agreement import KEPT
from cupola.association.design import AUTOSOME, kinds
from cupola.association.limits import WITHHELD, told_of
from cupola.association.linkage_counts import LEAST_MINOR, LINKAGE
from cupola.association.questions import Chunk, place_of
from cupola.association.study_choices import PEOPLE_PER_PARTNER
from cupola.federation.message import Question, Spec
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.part import Outlined
    from cupola.association.questions import Asker
    from cupola.association.study_choices import Clump, Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total

MOST = 1000  # variants of a region
_PAIRS = 1 << 15  # in a question, unless a region has more


@dataclass(frozen=True)
class Pairs:
    """Of one question. rows: of the list, in its order. pairs: (k, 2) places in `rows`, each index
    variant before its partners; among index variants the one further up the genome first."""

    rows: np.ndarray
    pairs: np.ndarray

    def question(self, people: int) -> Question:
        chunk = Chunk(int(self.rows[0]), int(self.rows[-1]) + 1, AUTOSOME, self.rows)
        k = len(self.pairs)
        return Question(
            LINKAGE,
            {**chunk.arrays(), "pairs": self.pairs.astype(np.int32)},
            place_of(chunk),
            {"haplotypes": Spec((k, 5), "int", 2 * people), WITHHELD: Spec((k,), "int", 1)},
            reveals="per pair of near variants with small p, counts of haplotypes over all people; "
            f"in how many cohorts one has fewer than {LEAST_MINOR} minor alleles, or partners for "
            f"fewer than {PEOPLE_PER_PARTNER} people each: then nothing else of that pair",
            decides=False,
        )


class Clumping:
    """The phase at one state. State: 'clump/i' (k, 5) haplotypes of the pairs of a question, -1
    where a cohort withholds them. Values: 'crowded', how many variants were beyond MOST."""

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state
        self.parts, self.crowded = chosen(program, state)
        self.at = sum(name.startswith("clump/") for name in state.arrays)

    def ask(self) -> Question | None:
        at = self.at
        people = self.state.values["people"]["loaded"]
        return self.parts[at].question(people) if at < len(self.parts) else None

    def answer(self, total: Total | None) -> State:
        if total is None:
            return self._over(self.state)
        told, withheld = told_of(total.arrays)
        counts = np.rint(told["haplotypes"]).astype(np.int64)
        counts[withheld] = -1
        return self._store(counts)

    def _store(self, counts: np.ndarray) -> State:
        state = self.state.next({f"clump/{self.at}": counts})
        return state if self.at + 1 < len(self.parts) else self._over(state, same_step=True)

    def _over(self, state: State, same_step: bool = False) -> State:
        warnings = list(state.values["warnings"])
        if self.crowded:
            warnings.append(
                f"{self.crowded:,} variants with small p are in regions of more than {MOST:,}: "
                "they are in no clump; choose a smaller clump.p2 or clump.kb"
            )
        told = self._counts(state)
        withheld = sum(int((counts < 0).all(axis=1).sum()) for counts in told)
        if withheld and not state.values.get("rehearsed"):
            warnings.append(
                f"of {withheld:,} of {sum(map(len, told)):,} pairs near hits r^2 is withheld by a "
                f"cohort (fewer than {LEAST_MINOR} minor alleles there, or more partners than a "
                "fifth of its people): they are in no clump together. A smaller clump.p2 or "
                "clump.kb makes fewer partners"
            )
        facts: dict[str, Any] = {
            "phase": self.program.after("clump"),
            "at": 0,
            "warnings": warnings,
        }
        if same_step:
            return State(state.step, state.arrays, {**state.values, **facts})
        return state.next(**facts)

    @staticmethod
    def _counts(state: State) -> list[np.ndarray]:
        return [a for name, a in state.arrays.items() if name.startswith("clump/")]

    def skip(self) -> State:
        return self._store(np.full((len(self.parts[self.at].pairs), 5), -1))

    def progress(self) -> tuple[int, int]:
        """In questions: regions are few."""
        return self.at, max(1, len(self.parts))

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:  # noqa: ARG003
        return (LINKAGE,)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        del program
        yield "sum", _one_region(np.arange(min(MOST, len(variants)))).question(asker.people), None


def chosen(program: Association, state: State) -> tuple[list[Pairs], int]:
    """The pairs to ask about, question by question; how many variants are left out of crowded
    regions."""
    clump = program.study.clump
    assert clump is not None
    reason = state.arrays["reason"]
    kept = np.flatnonzero((reason == KEPT) & everywhere(state))
    if state.values.get("rehearsed"):  # no results: as if one region were full of hits
        return ([_one_region(kept[:MOST])] if len(kept) > 1 else []), 0
    return choose(program.variants(state)[kept], kept, statistics(program, state), clump)


def choose(
    variants: Variants, rows: np.ndarray, statistic: np.ndarray, clump: Clump
) -> tuple[list[Pairs], int]:
    """rows: of the list, where these variants stand."""
    with np.errstate(invalid="ignore"):
        near = np.flatnonzero((statistic >= threshold(clump.p2)) & possible(variants))
    order = near[np.lexsort((near, variants.position[near], variants.chromosome[near]))]
    found: list[tuple[np.ndarray, np.ndarray]] = []
    crowded = 0
    for region in _regions(variants, order, statistic >= threshold(clump.p1), clump.kb):
        if len(region) > MOST:
            crowded += len(region) - MOST
            best = np.argsort(-statistic[region], kind="stable")[:MOST]
            region = region[np.sort(best)]
        pairs = _pairs(variants, region, statistic >= threshold(clump.p1), clump.kb)
        if len(pairs):
            found.append((rows[region], pairs))
    return list(_packed(found)), crowded


@lru_cache(maxsize=16)
def threshold(p: float) -> float:
    """Chi-square of one degree of freedom beyond which p is smaller, a little less of it; the same
    wherever it is computed."""
    return float(np.floor(1e4 * pvalues.chi2_of(p)) / 1e4)


def possible(variants: Variants) -> np.ndarray:
    """On an autosome, with a position."""
    autosome = kinds(variants.chromosome) == AUTOSOME
    return autosome & (variants.chromosome > 0) & (variants.position > 0)


def statistics(program: Association, state: State) -> np.ndarray:
    """The square of z or t, or chi-square, of each variant that is tested and that no cohort lacks,
    in the list's order; NaN without a result. Of saddle points that of the score. By +, -, *, /
    alone."""
    kept = np.flatnonzero((state.arrays["reason"] == KEPT) & everywhere(state))
    if not program.study.regression:
        return chi_square.statistic(state.arrays["alleles"][kept])
    z = np.full(len(state.arrays["reason"]), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        if program.study.scored:
            z = state.arrays["score"][:, 2] / state.arrays["score"][:, 3]
        for i, chunk in enumerate(program.chunks(state) if "test/0" in state.arrays else ()):
            table = state.arrays[f"test/{i}"]
            z[chunk.index] = table[:, 2] / table[:, 2 + (table.shape[1] - 2) // 2]
        return (z * z)[kept]


def _regions(
    variants: Variants, order: np.ndarray, index: np.ndarray, kb: float
) -> Iterator[np.ndarray]:
    """Variants, along the genome, of windows that overlap."""
    low, high = _windows(variants, order, kb)
    start = stop = 0
    for i in np.flatnonzero(index[order]).tolist():
        if low[i] >= stop:
            if stop > start:
                yield order[start:stop]
            start = int(low[i])
        stop = int(high[i])
    if stop > start:
        yield order[start:stop]


def _windows(variants: Variants, order: np.ndarray, kb: float) -> tuple[np.ndarray, np.ndarray]:
    """Of each variant in this order, which stretch of it is on its chromosome and so near."""
    far = int(kb * 1000)
    # One number along the genome; no position is beyond 2^40.
    place = variants.chromosome[order].astype(np.int64) * (1 << 42) + variants.position[order]
    return np.searchsorted(place, place - far), np.searchsorted(place, place + far, "right")


def _pairs(variants: Variants, region: np.ndarray, index: np.ndarray, kb: float) -> np.ndarray:
    """(k, 2) places in the region: an index variant, and a partner that is none or comes later."""
    low, high = _windows(variants, region, kb)
    is_index, found = index[region], []
    for i in np.flatnonzero(is_index).tolist():
        others = np.arange(low[i], high[i])
        others = others[(others != i) & ~(is_index[others] & (others < i))]
        found.append(np.column_stack([np.full(len(others), i), others]))
    return np.concatenate(found)


def _packed(regions: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[Pairs]:
    """Regions in questions, rows of each in the list's order."""
    rows: list[np.ndarray] = []
    pairs: list[np.ndarray] = []
    for region, own in regions:
        if pairs and sum(map(len, pairs)) + len(own) > _PAIRS:
            yield _sorted(np.concatenate(rows), np.concatenate(pairs))
            rows, pairs = [], []
        pairs.append(own + sum(map(len, rows)))
        rows.append(region)
    if pairs:
        yield _sorted(np.concatenate(rows), np.concatenate(pairs))


def _sorted(rows: np.ndarray, pairs: np.ndarray) -> Pairs:
    order = np.argsort(rows)
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    return Pairs(rows[order], place[pairs])


def _one_region(rows: np.ndarray) -> Pairs:
    return Pairs(rows, np.column_stack(np.triu_indices(len(rows), 1)))
