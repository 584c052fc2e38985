"""Going on without a cohort: what that would tell, and who must have agreed to it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cupola.analysis.folder_lock import read_lines
from cupola.association.plan import StudyPlan, without
from cupola.errors import PlanError


def leave(plan: StudyPlan, folder: Path, leaving: Iterable[str]) -> StudyPlan:
    """The study of the other cohorts. After a total was told only those may leave that agreed to it
    beforehand (may_leave): the difference of two totals is their own numbers."""
    leaving = list(leaving)
    left = without(plan, leaving)
    path = folder / "ledger.jsonl"
    told = path.exists() and any(
        entry["kind"] == "sum" and entry["sites"] and not entry["failed"]
        for entry in read_lines(path)
    )
    against = [c.name for c in plan.cohorts if c.name in leaving and not c.may_leave]
    if told and against:
        raise PlanError(
            f"cohort '{against[0]}' has not agreed that the study goes on without it (may_leave), "
            "and totals with it were told: the difference would be its own numbers. Wait for it "
            "and resume, or begin a new study that its totals are not compared with"
        )
    return left
