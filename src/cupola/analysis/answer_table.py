"""What sites reveal, as a table: every kind of answer that a program asks for, how often, how
large, who gets it and what protects it.

The rows are made from the questions themselves, so that what people read before they consent is
what the program asks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from cupola.analysis.protocol import Analysis
from cupola.analysis.rehearsal import AnsweredRehearsal, rehearse_answered
from cupola.federation import Ask, Question
from cupola.federation.message import contribution_size
from cupola.federation.site import Host
from cupola.secure import masked, pairwise
from cupola.secure.choices import Sum
from cupola.secure.identity import Identity
from cupola.secure.masked import protection
from cupola.secure.roster import Roster

INVITED = 200  # sites at most; what each of more would be asked is the same
#: ('sum' or 'gather', a question, how often it is asked; None: that depends on answers).
Asked = tuple[str, Question, int | None]


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


def answer_rows(
    asked: Iterable[Asked], choice: Sum, roster: Roster, as_bytes: Collection[str] = ()
) -> list[dict[str, Any]]:
    """A row for every kind of answer. as_bytes: tasks whose whole numbers are single bytes."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    known: dict[tuple[Any, ...], dict[str, Any]] = {}  # questions of one shape tell the same
    for kind, q, times in asked:
        shapes = tuple((n, spec.kind, tuple(spec.shape)) for n, spec in q.expects.items())
        shape = (kind, q.task, q.reveals, q.protection, len(str(q.step)), shapes)
        if shape not in known:
            known[shape] = _row(kind, q, choice, roster, q.task in as_bytes)
        row = known[shape]
        key = (*row.values(), times is None)
        held = rows.setdefault(key, {**row, "times": None if times is None else 0})
        if times is not None:
            held["times"] += times
    return list(rows.values())


def heard(analysis: Analysis[Any], host: Host) -> list[Asked]:
    """Every question of a program, played through with simulated sites that answer."""
    reach = _Listening(analysis, host)
    rehearse_answered(analysis.program(host), reach)
    return reach.asked


class _Listening(AnsweredRehearsal):
    def __init__(self, analysis: Analysis[Any], host: Host) -> None:
        super().__init__(analysis, host)
        self.asked: list[Asked] = []

    def put(self, ask: Ask) -> bool:
        self.asked.append((ask.kind, ask.question, 1))
        return super().put(ask)


def _row(
    kind: str, question: Question, choice: Sum, roster: Roster, as_bytes: bool
) -> dict[str, Any]:
    if choice.masked and kind == "sum":
        protocol = pairwise if choice.protocol == "pairwise" else masked
        everybody = range(len(roster.sites))
        sent = dict.fromkeys(everybody, frozenset(question.expects))
        size = protocol.expected_traffic(question, roster, everybody, sent).up[0]
        who = f"coordinator: the total of at least {roster.minimum} sites"
        how = protection(question.protection, roster)
    else:
        types = {"float": np.float32, "int": np.uint8 if as_bytes else np.int64, "bool": np.bool_}
        arrays: dict[str, np.ndarray] = {
            n: np.broadcast_to(np.zeros((), types[s.kind]), s.shape)
            for n, s in question.expects.items()
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
