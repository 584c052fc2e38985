"""The test of every variant under the mixed model: its product with the solution that leaves its
group of chromosomes out, after covariates, with the calibration of `mixed_model`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cupola.association import fit, portable_algebra
from cupola.association.design import SEX_X
from cupola.association.limits import told_of
from cupola.association.part import Outlined
from cupola.association.quality import pooled
from cupola.association.questions import Asker, Chunk
from cupola.association.structure.mixed_model import MOST, group_of
from cupola.association.structure.mixed_questions import MixedAsker
from cupola.association.structure.mixed_tasks import TEST
from cupola.federation.federation import Total
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.message import Arrays, Question


class MixedTest:
    """One chunk of variants at a time; what a chunk has come to is laid out as `Regression`'s."""

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state
        self.chunk: Chunk = program.chunks(state)[state.values["at"]]
        self.facts = state.values["mixed"]
        self.fixed = 1 + len(program.columns(self.chunk.kind))
        a1, both = pooled(state.arrays["alleles"][self.chunk.index])
        self.frequency = np.where(both > 0, a1 / np.maximum(both, 1), 0.0)
        self.missing = bool((both < program.expected_alleles(state, self.chunk.index)).any())
        self.column = self._column()

    def _column(self) -> np.ndarray:
        """Which solution each variant takes."""
        left = self.facts["left"]
        chromosome = self.program.variants(self.state).chromosome[self.chunk.index]
        found = np.zeros(len(chromosome), np.int8)
        for one in np.unique(chromosome).tolist():
            group = group_of(one, self.program.study.mixed.groups, left)
            found[chromosome == one] = left.index(group)
        return found

    def ask(self) -> Question | None:
        asker = MixedAsker(self.program.asker(self.state), 0, self.fixed)
        given = {"frequency": self.frequency, "column": self.column}
        return asker.test(self.chunk, self.fixed, given, self.facts["heritability"], self.missing)

    def answer(self, total: Total | None) -> State:
        assert total is not None
        sums, withheld = told_of(total.arrays)
        k, p, width = len(self.chunk.index), self.fixed, self.state.values["width"][-1]
        null = self.state.values["null"][str(self.chunk.kind)]
        whole = fit.symmetric(np.array(null["products"]), p + 1)[:-1, :-1]
        products = np.empty((k, p + 1, p + 1))
        products[:, :-1, :-1] = whole
        products[:, -1, :-1] = products[:, :-1, -1] = sums["cross"]
        products[:, -1, -1] = sums["square"]
        people = np.rint(sums["people"])
        status = fit.trouble(products, people, self.program.study.vif)
        status[withheld] = fit.WITHHELD
        inverse = portable_algebra.inverse(whole[None])[0]
        inside = portable_algebra.combined(sums["cross"], inverse)
        own = sums["square"] - portable_algebra.dot(inside, sums["cross"])
        along = np.array(self.facts["along"][str(self.chunk.kind)])[:, self.column].T
        score = sums["score"] - portable_algebra.dot(inside, along)
        good = (status == fit.OK) & (own > 0)
        informed = np.where(good, own, np.nan) * self.facts["calibration"]
        beta = score / informed * width
        variance = np.array(self.facts["variance"])[self.column]
        error = np.sqrt(variance / informed) * width
        table = np.column_stack([np.where(withheld, np.nan, people), status, beta, error])
        return self._store(table)

    def _store(self, table: np.ndarray) -> State:
        at = self.state.values["at"]
        last = at + 1 == len(self.program.chunks(self.state))
        phase = self.program.after("mixed test") if last else "mixed test"
        return self.state.next({f"test/{at}": table}, at=at + 1, phase=phase)

    def skip(self) -> State:
        empty = np.full((len(self.chunk.index), 4), np.nan)
        empty[:, 1] = fit.OK
        return self._store(empty)

    def progress(self) -> tuple[int, int]:
        """In variants."""
        sizes = [len(chunk.index) for chunk in self.program.chunks(self.state)]
        return sum(sizes[: self.state.values["at"]]), sum(sizes)

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:
        del study
        return (TEST,)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        study, size = program.study, program.study.chunk
        k, p = min(len(variants), size), 1 + len(program.columns(SEX_X))
        chunk = Chunk(0, k, 0, np.arange(k))
        given: Arrays = {"frequency": np.zeros(k), "column": np.zeros(k, np.int8)}
        h = study.mixed.heritability or MOST
        question = MixedAsker(asker, 0, p).test(chunk, p, given, h, True)
        yield "sum", question, -(-len(variants) // size)
