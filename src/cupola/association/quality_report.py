"""The part of a study that asks about the quality of people, after the counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cupola.association.agreed_variants import everywhere
from cupola.association.agreement import KEPT
from cupola.association.design import AUTOSOME, SEX_X, kinds
from cupola.association.people_quality import FAR, MISSING, PEOPLE_QUALITY, F
from cupola.association.quality import pooled
from cupola.federation.message import Arrays, Question, Spec
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.part import Outlined
    from cupola.association.questions import Asker
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total


class QualityReport:
    """The phase at one state. Values: 'people_quality', totals by name."""

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state

    def ask(self) -> Question | None:
        state = self.state
        variants, reason = self.program.variants(state), state.arrays["reason"]
        a1, both = pooled(state.arrays["alleles"])
        kept = (reason == KEPT) & everywhere(state) & (a1 > 0) & (a1 < both)
        kind = kinds(variants.chromosome)
        kept &= (kind == SEX_X) | ((variants.chromosome >= 1) & (variants.chromosome <= 22))
        rows = [np.flatnonzero(kept & (kind == k)) for k in (AUTOSOME, SEX_X)]
        if not len(rows[0]):
            return None
        index = np.concatenate(rows)
        asker = self.program.asker(state)
        return question(asker, len(variants), rows, a1[index] / both[index])

    def answer(self, total: Total | None) -> State:
        told = {} if total is None else {
            name: np.rint(array).astype(int).tolist() for name, array in total.arrays.items()
        }  # fmt: skip
        phase = self.program.after("quality report")
        return self.state.next(people_quality=told, phase=phase, at=0)

    def skip(self) -> State:
        return self.answer(None)

    def progress(self) -> tuple[int, int]:
        return 0, 1

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:  # noqa: ARG003
        return (PEOPLE_QUALITY,)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        del program
        m = len(variants)
        yield "sum", question(asker, m, [np.arange(m), np.arange(0)], np.zeros(m)), 1


def question(
    asker: Asker, variants: int, rows: list[np.ndarray], frequency: np.ndarray
) -> Question:
    """rows: of the list, autosomal ones and those on X."""
    arrays: Arrays = {"frequency": frequency}
    for name, index in zip(("variants", "on_x"), rows):
        bits = np.zeros(variants, bool)
        bits[index] = True
        arrays |= {name: np.packbits(bits)} if len(index) else {}
    people = asker.people
    return Question(
        PEOPLE_QUALITY,
        arrays,
        {"start": 0, "stop": variants},
        {
            "missing": Spec((len(MISSING) + 1,), "int", people),
            "f": Spec((len(F) + 1,), "int", people),
            "sex": Spec((2,), "int", people),
            "far": Spec((len(FAR),), "int", len(frequency)),
            "held_back": Spec((1,), "int", 1),
        },
        reveals="counts of people by share of missing calls and inbreeding coefficient, of those "
        "whose sex does not fit their chromosome X, and of variants whose frequency in a cohort is "
        "far from the pooled one; in how many cohorts some counts are too small to be told",
        decides=False,
    )
