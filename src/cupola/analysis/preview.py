"""A preview: what a study would ask of a real site, before it consents. Every kind of answer, its
size, its protection, who gets it, and what it costs.

It comes from a rehearsal of the program and is the only description of what is told (see
`Analysis.preview`). Nobody is asked, and nothing leaves the site.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.engines.in_process import InProcess
from cupola.errors import CupolaError
from cupola.federation.federation import Total
from cupola.federation.message import Contribution, Question, blank, contribution_size
from cupola.federation.program import State, drive
from cupola.federation.site import Accounts, Charge, Host
from cupola.privacy.budget import Book
from cupola.privacy.events import common_neighbours
from cupola.secure.identity import Identity
from cupola.secure.roster import Roster
from cupola.secure.secure_aggregation import protection
from cupola.secure.sum_choice import Sum
from cupola.secure.traffic import expected_traffic

if TYPE_CHECKING:
    from cupola.analysis.protocol import Analysis, OwnSite

INVITED = 200  # sites at most; what each of more would be asked is the same
LONGEST = 60.0  # seconds for which a program is played through
_UNCHECKED = (
    "beyond its tasks, this kind of analysis does not say which questions follow from the plan: "
    "the coordinator chooses what is in them"
)


@dataclass
class Preview:
    """answers: a row for every kind of answer, with how often it is asked for ('times', None:
    depends on answers). complete: whether all of the program was played through. parties: who
    learns what. limits: of what totals tell of single people."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    parties: list[tuple[str, str]] = field(default_factory=list)
    epsilon: dict[str, Any] | None = None
    limits: list[str] = field(default_factory=list)


def answer_row(
    kind: str, question: Question, choice: Sum, roster: Roster, whole: type[np.integer] = np.int64
) -> dict[str, Any]:
    """What the answer to a question tells whom. whole: the type of integers in it."""
    if choice.masked and kind == "sum":
        everybody = range(len(roster.sites))
        sent = dict.fromkeys(everybody, frozenset(question.expects))
        size = expected_traffic(question, roster, everybody, sent).up[0]
        who = f"coordinator: the total of at least {roster.minimum} sites"
        how = protection(question.protection, roster)
    else:
        types: dict[str, Any] = {"float": np.float32, "int": whole, "bool": np.bool_}
        arrays: dict[str, np.ndarray] = {
            n: blank(s, np.zeros((), types[s.kind])) for n, s in question.expects.items()
        }
        size, who = contribution_size(arrays), "coordinator: this site's own answer"
        how = question.protection
    numbers = sum(math.prod(spec.shape) for spec in question.expects.values())
    return {
        "task": question.task,
        "numbers": numbers,
        "bytes": size,
        "to": who,
        "reveals": question.reveals,
        "protection": how,
    }


class AnswerRows:
    """Rows of answers, equal ones counted."""

    def __init__(self, choice: Sum, roster: Roster) -> None:
        self.choice, self.roster = choice, roster
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}  # of questions of one shape

    def add(self, kind: str, question: Question) -> None:
        q = question
        shapes = tuple((n, spec.kind, tuple(spec.shape)) for n, spec in q.expects.items())
        shape = (kind, q.task, q.reveals, q.protection, len(str(q.step)), shapes)
        if shape not in self._known:
            self._known[shape] = answer_row(kind, q, self.choice, self.roster)
        row = self._known[shape]
        self._rows.setdefault(tuple(row.values()), {**row, "times": 0})["times"] += 1

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows.values())


class _Expected(Roster):
    """The shape of a roster before keys are known."""

    def __post_init__(self) -> None: ...


def expected_roster(
    study: str, sites: Sequence[str], minimum: int, third: str | None, changes: bool = False
) -> Roster:
    """Who would get what, in a preview: as if these had settled their keys."""
    keys = [Identity.simulated(i, name).public for i, name in enumerate(sites)]
    other = None if third is None else Identity.simulated(len(keys), third).public
    return _Expected(study, tuple(keys), other, minimum, changes=changes)


def simulated_roster(analysis: Analysis[Any], sites: int) -> Roster:
    """The parties of a plan whose sites are only known by their number."""
    plan, names = analysis.plan, [f"site {i + 1}" for i in range(min(sites, INVITED))]
    third = plan.sum.masked and plan.sum.protocol == "compensator"
    minimum = min(analysis.minimum or len(names), len(names))
    return expected_roster(plan.name, names, minimum, "compensator" if third else None)


# Playing a program through


def simulated_answers(analysis: Analysis[Any]) -> list[dict[str, Any]]:
    """Every kind of answer that a program asks its simulated sites for."""
    host = analysis.host()
    rows = AnswerRows(analysis.plan.sum, simulated_roster(analysis, len(host)))
    with _Noted(host, rows, analysis.plan.seed) as reach:
        drive(analysis.program(host), reach, after=lambda state: reach.confirm(state.step - 1))
    return rows.rows


def played(analysis: Analysis[Any], site: OwnSite, roster: Roster) -> Preview:
    """The preview of any analysis: its program is run in this process, as if every site had this
    one's data."""
    from cupola.analysis.protocol import Analysis, NoData

    plan, sites = analysis.plan, len(roster.sites)
    rows, costs = AnswerRows(plan.sum, roster), _Costs()
    host = _Everywhere(analysis.own_host(site), site.number, sites, costs)
    found, steps = Preview(complete=True), 0
    late = time.monotonic() + LONGEST

    def after(state: State) -> None:
        nonlocal steps
        steps = state.step
        reach.confirm(steps - 1)
        if time.monotonic() > late:
            raise _TooLong

    with _Noted(host, rows, plan.seed) as reach:
        try:
            drive(analysis.program(NoData(sites)), reach, after=after)
        except _TooLong:
            found.complete = False
        except Exception as error:  # the user's program, on totals that no real study has
            found.complete = False
            said = str(error) if isinstance(error, CupolaError) else type(error).__name__
            found.limits.append(f"the rehearsal ended after {steps} steps: {said}")
    if not analysis.replayable and type(analysis).allows is Analysis.allows:
        found.limits.append(_UNCHECKED)
    found.answers, found.epsilon = rows.rows, costs.told(site.rules.budget)
    found.parties = analysis.parties()
    if analysis.differences is not None:
        found.parties.append(("coordinator", analysis.differences))
    return found


class _TooLong(Exception):
    """A program with very many steps: more of the same."""


class _Noted(InProcess):
    """Sites in this process, whose questions are noted."""

    def __init__(self, host: Host, rows: AnswerRows, seed: int) -> None:
        super().__init__(host, seed=seed, mode="one-by-one", workers=1)
        self.rows = rows

    def sum(self, question: Question, sites: Sequence[int]) -> Total:
        self.rows.add("sum", question)
        return super().sum(question, sites)

    def gather(self, question: Question, sites: Sequence[int]) -> dict[int, Contribution]:
        self.rows.add("gather", question)
        return super().gather(question, sites)


@dataclass
class _Everywhere:
    """One site's data, at every site."""

    own: Host
    number: int
    sites: int
    costs: _Costs

    def __len__(self) -> int:
        return self.sites

    def data(self, site: int) -> Any:  # noqa: ARG002
        return self.own.data(self.number)

    def workspace(self) -> Any:
        return self.own.workspace()

    def accounts(self, folder: Path | None, name: str) -> Accounts:  # noqa: ARG002
        return self.costs

    def close(self) -> None:
        getattr(self.own, "close", lambda: None)()


class _Costs:
    """What answers would cost the site, in memory."""

    def __init__(self) -> None:
        self.book, self.charges = Book(), set[Charge]()

    def charge(self, question: Question, charges: Mapping[int, Charge | None]) -> dict[int, str]:
        self.charges |= {charge for charge in charges.values() if charge is not None}
        return self.book.charge(question, charges)

    def told(self, budget: Any) -> dict[str, Any] | None:
        """budget: the site's own, if it has one."""
        if not self.charges:
            return None
        delta = 1e-5 if budget is None else budget.delta
        history = self.book.history(0)
        neighbours = common_neighbours(history) if budget is None else budget.neighbours
        trusted = sorted({charge.trusts for charge in self.charges} - {"nobody"})
        against = f"everybody, if {', '.join(trusted)} keep to it" if trusted else ""
        return {
            "epsilon": self.book.spent(0, delta, neighbours),
            "at_most": [],
            "delta": delta,
            "neighbours": neighbours,
            "against": against or "everybody outside the site",
            "unit": ", ".join(sorted({charge.unit for charge in self.charges})),
            "unprotected": [f"answers to '{task}'" for task in self.book.unprotected],
            "budget": None if budget is None else budget.epsilon,
        }
