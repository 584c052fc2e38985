"""Open sums: a site's integers as they are, added up by the coordinator, who sees each of them.

The encoding is that of masked sums, so that a total is exact, whoever adds up in whatever order,
and can be witnessed (see `witness`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cupola.federation import (
    Contribution,
    Declined,
    Failure,
    Question,
    SiteContext,
    Spec,
    Total,
    task,
)
from cupola.federation.message import contribution_size, refusal
from cupola.secure.encoding import Entry, scales_hash
from cupola.secure.hidden import (
    hidden_values,
    inner_question,
    layout_of,
    outer_question,
    present,
    question_hash,
    total_from,
)
from cupola.secure.masked import Hidden
from cupola.secure.member import member_of

OPEN = "open/"


@task("open")
def open_answer(site: SiteContext, question: Question) -> Contribution:
    """The inner question's answer, as integers that nothing hides."""
    member, inner = member_of(site), inner_question(question)
    if inner.task not in member.openly:
        raise Declined("this site does not answer this openly")
    layout = layout_of(inner, len(member.roster.sites))
    roster = question.options["hidden"].get("roster")
    member.agree(roster, inner.step, question_hash(inner), scales_hash(layout))
    values = hidden_values(site, inner, layout, "open")
    member.stand_by(inner.step, values)
    return Contribution({OPEN + entry.name: integers for entry, integers in values.items()})


open_answer.about = inner_question


class Open(Hidden):
    """Sums over an engine that hide nothing."""

    def sum(self, question: Question, sites: Sequence[int]) -> Total:
        question = replace(question, confirmed=self.engine.confirmed_for(question))
        total, broken = self._sum(question, sorted(sites))
        self.require_quorum(question, len(total.sites), len(sites), total.failed, broken)
        return total

    def _sum(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        layout = layout_of(question, len(self.roster.sites))
        expects = {OPEN + entry.name: Spec((entry.size,), "int") for entry in layout}
        roster = {"roster": self.roster.digest.hex()}
        outer = outer_question("open", question, expects, roster)
        outer = replace(outer, partial=question.partial)
        sums: dict[Entry, np.ndarray] = {}
        answered, sizes, failed, broken = [], [], dict(self.engine.admit(outer, sites)), []
        for site, answer in self.engine.ask(outer, [s for s in sites if s not in failed]):
            code = answer.code if isinstance(answer, Failure) else refusal(answer, outer)
            own = () if isinstance(answer, Failure) else present(layout, answer, OPEN)
            if isinstance(answer, Failure) or code is not None:
                failed[site] = str(code)
                broken += [site] if not isinstance(answer, Failure) or answer.broken else []
                continue
            for entry in own:
                integers = answer.arrays[OPEN + entry.name].astype(entry.dtype)
                sums[entry] = sums[entry] + integers if entry in sums else integers
            answered.append(site)
            sizes.append(contribution_size(answer.arrays))
        total = total_from(question, sums, answered, failed) if answered else Total(failed=failed)
        self._enter(outer, question, total, sizes)
        return total, broken

    def _protection(self, question: Question) -> str:
        return question.protection
