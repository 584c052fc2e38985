"""A part of a study: the steps between the counts and the results that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.questions import Asker
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total
    from cupola.federation.message import Question
    from cupola.federation.program import State

#: 'sum' or 'gather', a question as large as it gets, how often (None: that hangs on answers).
Outlined = tuple[str, "Question", "int | None"]


class Part(Protocol):
    """One part at one state; made anew for every step, so that all it knows is in the state.

    Its state stands in arrays and values of names of its own. The last answer goes on with
    `state.next(..., phase=program.after(NAME), at=0)`.
    """

    def __init__(self, program: Association, state: State) -> None: ...

    def ask(self) -> Question | None:
        """The next question, to all cohorts; None where there is nothing to ask."""

    def answer(self, total: Total | None) -> State:
        """The state after the total, or after a step that asked nobody."""

    def skip(self) -> State:
        """The state after this question, for a rehearsal in which nobody computes: as if it went on
        for as long as it may."""

    def progress(self) -> tuple[int, int]:
        """How much is done, and of how much."""

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:
        """All that cohorts are asked in it."""

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        """Every kind of its questions, as large as it gets, before anybody is asked. asker: with
        people of all cohorts together, about. variants: those of one cohort, for the list."""
