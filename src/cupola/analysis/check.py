"""What a plan will ask, send and reveal, before anything runs: its program rehearsed.

This is the default of `Analysis.check`: simulated sites answer, in this process, and every question
is counted as a run would count it. Where that takes too long, an analysis rehearses by shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cupola.analysis.grounds import MEANING, of_sum, used
from cupola.analysis.protocol import Analysis
from cupola.analysis.rehearsal import AnsweredRehearsal, rehearse_answered
from cupola.base.formatting import count, size
from cupola.errors import FederationError, PlanError


def check(analysis: Analysis[Any]) -> dict[str, Any]:
    """Everything `cupola check` says, as plain values."""
    plan, host = analysis.plan, analysis.host()
    reach = AnsweredRehearsal(analysis, host)
    try:
        rehearse_answered(analysis.program(host), reach)
    except FederationError as error:
        raise PlanError(f"this plan would stop before its end: {error}") from None
    rows = [row for row in reach.rows.values() if row["questions"]]
    down, up = sum(row["down"] for row in rows), sum(row["up"] for row in rows)
    at_most = ["which sites share masks is drawn by them"] if reach.sparse else []
    return {
        "name": plan.name,
        "kind": plan.kind,
        "sites": len(host),
        "bytes": {
            "down": down, "up": up, "total": down + up, "at_most": at_most, "rows": rows,
        },
        "told": list(reach.told_lines),
        "parties": rows_of(analysis.parties()),
        "grounds": [ground.to_json() for ground in used(of_sum(plan.sum, len(host)))],
    }  # fmt: skip


def check_lines(facts: Mapping[str, Any]) -> list[str]:
    """The same for a terminal."""
    sent = facts["bytes"]
    most = "at most " if sent["at_most"] else ""
    return [
        f"{facts['name']}: {facts['kind']}, {count(facts['sites'], 'site')}",
        *task_lines(sent["rows"]),
        f"{most}{size(sent['total'])} sent in all",
        *(f"  at most: {reason}" for reason in sent["at_most"]),
        *(f"[bold]told      [/] {line}" for line in facts["told"]),
        *party_lines(facts["parties"]),
        *ground_lines(facts["grounds"]),
    ]


def task_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What each task sends."""
    return [
        f"  {row['task']:<18} {count(row['questions'], 'time')}: {size(row['down'])} down, "
        f"{size(row['up'])} up"
        for row in rows
    ]


def rows_of(parties: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Who learns what, as plain values."""
    return [{"party": party, "learns": what} for party, what in parties]


def party_lines(parties: Iterable[Mapping[str, str]]) -> list[str]:
    """Who learns what."""
    return [f"[bold]learns    [/] {row['party']}: {row['learns']}" for row in parties]


def ground_lines(grounds: list[dict[str, Any]]) -> list[str]:
    """What a plan's guarantees stand on, the proven ones first."""
    order = list(MEANING)
    lines = [] if not grounds else ["[bold]what this stands on[/] (nobody outside has reviewed it)"]
    for row in sorted(grounds, key=lambda row: order.index(row["mark"])):
        lines.append(f"  {row['mark']:<19} {row['guarantee']}: {', '.join(row['where'])}")
    return lines
