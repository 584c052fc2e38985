"""Runs side by side: communication, utility, privacy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.orm import Session

from cupola.pages.folder import RunFolder, open_run
from cupola.report.compare_page import cup, sections
from cupola.web.access import Config, Db, Me
from cupola.web.kinds import Wrong, analysis_named
from cupola.web.models import FINISHED, Run, Study
from cupola.web.render import page
from cupola.web.routes.study import _mine
from cupola.web.settings import Settings

router = APIRouter()
LISTED, MOST = 200, 12


@router.get("/compare")
def compare(
    request: Request, db: Db, me: Me, config: Config,
    run: Annotated[list[int] | None, Query()] = None,
) -> Response:  # fmt: skip
    """All finished runs to choose from, and those that were chosen beside each other."""
    wanted = list(dict.fromkeys(run or []))
    if len(wanted) > MOST:
        raise HTTPException(422, f"{MOST} runs at most can be compared")
    rule = [_mine(me), Run.status == FINISHED, Study.kind.in_(_comparable(db, config))]
    listed = db.execute(
        select(Run, Study).join(Study).where(*rule).order_by(Run.id.desc()).limit(LISTED)
    ).all()
    chosen = [n for n in wanted if 0 < n < 2**31]
    picked = db.execute(
        select(Run, Study).join(Study).where(*rule, Run.id.in_(chosen)).order_by(Run.id)
    ).all()
    if len(picked) < len(wanted):
        raise HTTPException(404, "there is no such run")
    labels = _labels([(r, s) for r, s in picked])
    folders: list[RunFolder] = []
    for (one, study), label in zip(picked, labels):
        found = open_run(config.run_folder(study.id, one.number) / "run", label)
        folders.append(replace(found, group=label))
    points = [
        {"name": label, "bytes": s["bytes"], "value": s["value"], "metric": s["metric"],
         "epsilon": s["epsilon"], "private": bool(s.get("private"))}
        for (r, _), label in zip(picked, labels) if (s := r.summary) and s["value"] is not None
    ]  # fmt: skip
    parts = [cup(points), *sections(folders, None)] if folders else []
    body = Markup("\n".join(part for part in parts if part))
    return page(request, "compare.html", listed=listed, chosen=set(wanted), body=body, most=MOST)


def _comparable(db: Session, config: Settings) -> list[str]:
    """Kinds of studies whose runs are judged by a metric."""
    found = []
    for kind in db.scalars(select(Study.kind).distinct()):
        with suppress(Wrong):  # of code that is no longer allowed here
            if analysis_named(kind, config.modules).comparable:
                found.append(kind)
    return found


def _labels(picked: list[tuple[Run, Study]]) -> list[str]:
    names = [study.name for _, study in picked]
    return [
        name if names.count(name) == 1 else f"{name} ({study.id[:4]}, run {run.number})"
        for name, (run, study) in zip(names, picked)
    ]
