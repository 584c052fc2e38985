"""A run: live while it runs, its results afterwards, its files, and a table to search."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse
from markupsafe import Markup

from cupola.analysis.run_folder import plan_file
from cupola.web.access import Config, Me, Seen, SeenRun
from cupola.web.launcher import TABLE
from cupola.web.models import FINISHED, QUEUED, RUNNING, Run, Study
from cupola.web.render import page

router = APIRouter()
_FILES = {
    "history.jsonl": "a line a round", "ledger.jsonl": "who was asked what",
    "plan.toml": "the plan as executed", "result.json": "the result in numbers",
    "report.html": "the report, as one file",
}  # fmt: skip


def files_of(folder: Path, study: Study, finished: bool = True) -> dict[str, str]:
    """What can be downloaded, and what it is. A plan with data sets that sites chose names their
    files, and stays here."""
    analysis = study.analysis
    there = folder / "run"
    known = {name: analysis.file_note(name) for name in analysis.files_of(_name(there))} | _FILES
    hidden = {"plan.toml"} if analysis.unchosen is not None else set()
    return {
        name: about
        for name, about in known.items()
        if name not in hidden
        and (finished or name.endswith(".jsonl"))
        and Path(name).name == name
        and (there / name).is_file()
    }


def _name(folder: Path) -> str:
    """What the plan of a run calls it."""
    path = plan_file(folder)
    try:
        return str(tomllib.loads(path.read_text("utf-8"))["name"]) if path else ""
    except (OSError, ValueError, KeyError):
        return ""


@router.get("/studies/{study_id}/runs/{number}")
def one(request: Request, run: SeenRun, study: Seen, me: Me, config: Config) -> Response:
    folder = config.run_folder(study.id, run.number)
    live = run.status in (QUEUED, RUNNING)
    made = folder / "results.html"
    body = made.read_text("utf-8") if run.status == FINISHED and made.is_file() else ""
    files = files_of(folder, study, run.status == FINISHED)
    return page(
        request, "run.html", study=study, run=run, live=live, owner=study.owner_id == me.id,
        body=Markup(body), files=files, plan_rounds=_rounds(study), course=_course(study),
        sizes={name: (folder / "run" / name).stat().st_size for name in files},
        table=study.analysis.table_link if (folder / TABLE).is_file() else "",
    )  # fmt: skip


def _rounds(study: Study) -> int:
    try:
        return int(tomllib.loads(study.plan).get("rounds", 0))
    except (ValueError, TypeError):
        return 0


def _course(study: Study) -> str:
    """Epsilon after shares of the run, as it was foreseen."""
    promise = (study.foreseen or {}).get("privacy") or {}
    return json.dumps(promise.get("course", []))


@router.get("/studies/{study_id}/runs/{number}/hits")
def table(
    request: Request, run: SeenRun, study: Seen, config: Config, search: str = "",
    at: Annotated[int, Query(alias="page", ge=1, le=10**7)] = 1,
) -> Response:  # fmt: skip
    path = config.run_folder(study.id, run.number) / TABLE
    if run.status != FINISHED or not path.is_file() or not study.analysis.table_link:
        raise HTTPException(404, "there is no table of results")
    found = study.analysis.search_table(path, search[:100], at)
    return page(request, "table.html", study=study, run=run, found=found, search=search[:100])


@router.get("/studies/{study_id}/runs/{number}/files/{name}")
def file(run: SeenRun, study: Seen, name: str, config: Config) -> Response:
    """A file of the list; no other name leads anywhere."""
    return send(run, study, name, config.run_folder(study.id, run.number))


def send(run: Run, study: Study, name: str, folder: Path) -> FileResponse:
    if name not in files_of(folder, study, run.status == FINISHED):
        raise HTTPException(404, "there is no such file")
    return FileResponse(
        folder / "run" / name, filename=f"{study.id}-{run.number}-{name}",
        media_type="application/octet-stream",
    )  # fmt: skip
