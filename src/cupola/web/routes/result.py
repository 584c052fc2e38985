"""A run: live while it runs, its results afterwards, its files, and the table of variants."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse
from markupsafe import Markup

from cupola.web import hits
from cupola.web.access import Config, Me, Seen, SeenRun
from cupola.web.models import FINISHED, QUEUED, RUNNING, Run, Study
from cupola.web.plans import ASSOCIATION
from cupola.web.render import page

router = APIRouter()
_FILES = {
    "model.safetensors": "the model", "personal.safetensors": "the groups' models",
    "personal.json": "groups and results of every site", "history.jsonl": "a line a round",
    "ledger.jsonl": "who was asked what", "plan.toml": "the plan as executed",
    "result.json": "the result in numbers", "report.html": "the report, as one file",
    "partition.json": "who holds what", "study.toml": "the study as executed",
}  # fmt: skip
_TABLES = {
    "study.assoc": "results, as PLINK prints them", "study.assoc.linear":
    "results, as PLINK prints them", "study.assoc.logistic": "results, as PLINK prints them",
    "study.model": "trend test, as PLINK prints it", "study.parquet": "results, unrounded",
    "study.ssf.tsv": "results for the GWAS catalog",
    "study.dropped.tsv": "why variants were left out",
}  # fmt: skip


def files_of(folder: Path, kind: str, finished: bool = True) -> dict[str, str]:
    """What can be downloaded, and what it is. A study's own file names paths at the sites."""
    known = {**_TABLES, **_FILES} if kind == ASSOCIATION else _FILES
    hidden = {"study.toml"} if kind == ASSOCIATION else set()
    if not finished:
        known = {n: t for n, t in known.items() if n.endswith(".jsonl")}
    there = folder / "run"
    return {n: t for n, t in known.items() if n not in hidden and (there / n).is_file()}


@router.get("/studies/{study_id}/runs/{number}")
def one(request: Request, run: SeenRun, study: Seen, me: Me, config: Config) -> Response:
    folder = config.run_folder(study.id, run.number)
    live = run.status in (QUEUED, RUNNING)
    made = folder / "results.html"
    body = made.read_text("utf-8") if run.status == FINISHED and made.is_file() else ""
    files = files_of(folder, study.kind, run.status == FINISHED)
    return page(
        request, "run.html", study=study, run=run, live=live, owner=study.owner_id == me.id,
        body=Markup(body), files=files, plan_rounds=_rounds(study), course=_course(study),
        sizes={name: (folder / "run" / name).stat().st_size for name in files},
        table=study.kind == ASSOCIATION and (folder / "hits.sqlite").is_file(),
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
    path = config.run_folder(study.id, run.number) / "hits.sqlite"
    if run.status != FINISHED or not path.is_file():
        raise HTTPException(404, "there is no table of variants")
    found = _p_early(hits.read(path, search[:100], at))
    values: dict[str, Any] = {"found": found, "search": search[:100], "most": hits.MOST}
    return page(request, "hits.html", study=study, run=run, **values)


def _p_early(found: hits.Page) -> hits.Page:
    """With p among the first columns, where a phone shows it."""
    if "P" not in found.head[3:]:
        return found
    at = found.head.index("P")

    def moved(cells: list[str]) -> list[str]:
        return [*cells[:2], cells[at], *cells[2:at], *cells[at + 1 :]]

    rows = [(rank, moved(cells)) for rank, cells in found.rows]
    return replace(found, head=moved(found.head), rows=rows)


@router.get("/studies/{study_id}/runs/{number}/files/{name}")
def file(run: SeenRun, study: Seen, name: str, config: Config) -> Response:
    """A file of the list; no other name leads anywhere."""
    return send(run, study, name, config.run_folder(study.id, run.number))


def send(run: Run, study: Study, name: str, folder: Path) -> FileResponse:
    if name not in files_of(folder, study.kind, run.status == FINISHED):
        raise HTTPException(404, "there is no such file")
    return FileResponse(
        folder / "run" / name, filename=f"{study.id}-{run.number}-{name}",
        media_type="application/octet-stream",
    )  # fmt: skip
