"""Open sums: a site's integers as they are, added up by the coordinator, who sees each of them.

The encoding is that of masked sums, so that a total is exact, whoever adds up in whatever order,
and can be witnessed (see `witness`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from cupola.federation.federation import Total
from cupola.federation.message import Contribution, Declined, Question, Spec
from cupola.federation.site import SiteContext, task
from cupola.secure.encoding import Entry, scales_hash
from cupola.secure.member import member_of
from cupola.secure.reading import options_of
from cupola.secure.secure_aggregation import Aggregation, SecureSums
from cupola.secure.wrapped_question import (
    inner_question,
    layout_of,
    outer_question,
    present,
    question_hash,
    total_from,
)

OPEN = "open/"


@task("open")
def open_answer(site: SiteContext, question: Question) -> Contribution:
    """The inner question's answer, as integers that nothing hides."""
    member, inner = member_of(site), inner_question(question)
    if inner.task not in member.unmasked:
        raise Declined("this site answers this in masked sums only")
    layout = layout_of(inner, len(member.roster.sites))
    roster = options_of(question).get("roster")
    member.agree(roster, inner.step, question_hash(inner), scales_hash(layout))
    values = member.values(site, inner, layout, "open")
    return Contribution({OPEN + entry.name: integers for entry, integers in values.items()})


open_answer.about = inner_question


class Open(SecureSums):
    """Sums over an engine that hide nothing."""

    minimum = 0

    def aggregation(self, question: Question, least: int = 0) -> Aggregation:
        del least  # what is not masked needs no attempts
        return OpenSum(self.engine, self.roster, question)

    def protection(self, question: Question) -> str:
        return question.protection


class OpenSum(Aggregation):
    """One phase: answers are added up as they come."""

    @cached_property
    def charged(self) -> Question:
        self.layout = layout_of(self.inner, len(self.roster.sites))
        expects = {OPEN + entry.name: Spec((entry.size,), "int") for entry in self.layout}
        options = {"roster": self.roster.digest.hex()}
        return outer_question("open", self.inner, expects, options)

    @property
    def phases(self) -> list[Callable[[], None]]:
        return [self.collect]

    def collect(self) -> None:
        self.asked = self.charged
        self.sums: dict[Entry, np.ndarray] = {}
        for _, arrays in self.ask(self.asked, self.sites):
            for entry in present(self.layout, arrays, OPEN):
                integers = arrays[OPEN + entry.name].astype(entry.dtype)
                self.sums[entry] = self.sums.get(entry, 0) + integers

    def total(self) -> Total:
        answered = list(self.sizes)
        return total_from(self.inner, self.sums, answered, self.failed) if answered else Total()
