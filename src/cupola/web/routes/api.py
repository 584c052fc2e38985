"""For programs: what scripts of sites use; described by /openapi.json."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from sqlalchemy import select

from cupola.web import accounts, invitations, reveal
from cupola.web.access import Config, Db, Me, address_of, may_see, note
from cupola.web.here import data_sets
from cupola.web.models import FINISHED, JOINED, QUEUED, RUNNING, Invitation, Study
from cupola.web.plans import ASSOCIATION
from cupola.web.routes.result import files_of, send
from cupola.web.routes.study import Desk, _mine
from cupola.web.studies import latest

router = APIRouter(prefix="/api")
_bearer = HTTPBearer(auto_error=False, description="The key that a token was exchanged for.")


class Said(BaseModel):
    """Why something was refused."""

    detail: str


class StudyFacts(BaseModel):
    id: str
    name: str
    kind: str
    status: str
    coordinator: str
    created: float
    sites: dict[str, str] = Field(description="Name of each invited site, and its answer.")


class Question(BaseModel):
    question: str
    reveals: str
    protection: str


class Asked(BaseModel):
    """What a site is asked to take part in."""

    study: StudyFacts
    site: str
    answer: str
    plan: str = Field(description="TOML.")
    questions: list[Question]
    data_sets: list[str] = Field(description="To choose from; empty where there is no choice.")


class Joining(BaseModel):
    token: str = Field(min_length=1, max_length=200)


class Joined(BaseModel):
    key: str = Field(description="For the header 'Authorization: Bearer KEY'; told once.")
    asked: Asked


class Accepting(BaseModel):
    data: str | None = Field(default=None, max_length=300, description="One of data_sets.")


class Progress(BaseModel):
    status: str
    run: int | None
    reason: str | None
    files: list[str]


_ERRORS: dict[int | str, dict[str, object]] = {
    400: {"model": Said}, 401: {"model": Said}, 403: {"model": Said}, 404: {"model": Said},
    409: {"model": Said}, 413: {"model": Said}, 422: {"model": Said}, 429: {"model": Said},
}  # fmt: skip
Id = Annotated[str, Path(max_length=16)]


def site(
    db: Db, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Invitation:
    """The site whose key was given."""
    found = invitations.by_key(db, given.credentials) if given else None
    if found is None:
        raise HTTPException(401, "the key is wrong", headers={"WWW-Authenticate": "Bearer"})
    return found


Site = Annotated[Invitation, Depends(site)]


def _facts(study: Study) -> StudyFacts:
    return StudyFacts(
        id=study.id, name=study.name, kind=study.kind, status=study.status,
        coordinator=study.owner.name, created=study.created,
        sites={i.site: i.status for i in study.invitations},
    )  # fmt: skip


def _asked(found: Invitation, config: Config) -> Asked:
    study = found.study
    rows = reveal.revealed(study)
    facts = _facts(study)
    facts.sites = {found.site: found.status}  # who else was asked is not a site's business
    return Asked(
        study=facts, site=found.site, answer=found.status, plan=study.plan,
        questions=[Question(question=q, reveals=r, protection=p) for q, r, p in rows],
        data_sets=sorted(data_sets(config.data)) if study.kind == ASSOCIATION else [],
    )  # fmt: skip


@router.get("/studies", responses=_ERRORS)
def studies(db: Db, me: Me, start: Annotated[int, Query(ge=0, le=10**6)] = 0) -> list[StudyFacts]:
    """A hundred studies of yours, the newest first, from `start` on."""
    found = db.scalars(
        select(Study).where(_mine(me)).order_by(Study.created.desc(), Study.id)
        .limit(100).offset(start)
    )  # fmt: skip
    return [_facts(study) for study in found]


@router.get("/studies/{study_id}", responses=_ERRORS)
def study(study_id: Id, db: Db, me: Me) -> StudyFacts:
    return _facts(may_see(db, me, study_id))


@router.post("/join", responses=_ERRORS)
def join(request: Request, given: Joining, db: Db, config: Config) -> Joined:
    """Exchange a token for a key. The token is useless afterwards."""
    accounts.hold_back(db, config, "token", address_of(request))
    if invitations.find(db, given.token) is None:
        db.add(accounts.Attempt(name="token", address=address_of(request)))
        db.commit()
        raise HTTPException(404, "this token is wrong, or was used already")
    found, key = invitations.take(db, given.token, None)
    note(db, request, "token used", found.study_id, found.site, who=f"site {found.site}")
    db.commit()
    return Joined(key=key, asked=_asked(found, config))


@router.get("/site", responses=_ERRORS)
def asked(found: Site, config: Config) -> Asked:
    """What the site was asked, and what it answered."""
    return _asked(found, config)


@router.post("/site/accept", responses=_ERRORS)
def accept(request: Request, given: Accepting, found: Site, desk: Desk) -> Progress:
    """Take part; the study starts when all have answered so."""
    invitations.accept(desk.settings, found, given.data)
    desk.db.flush()
    desk.start_if_complete(found.study)
    note(desk.db, request, "site joined", found.study, found.site, who=f"site {found.site}")
    desk.db.commit()
    return _progress(found, desk)


@router.post("/site/decline", status_code=204, responses=_ERRORS)
def decline(request: Request, found: Site, db: Db) -> None:
    invitations.decline(found)
    note(db, request, "site declined", found.study, found.site, who=f"site {found.site}")
    db.commit()


@router.post("/site/leave", status_code=204, responses=_ERRORS)
def leave(request: Request, found: Site, desk: Desk) -> None:
    """Take part no longer. A running study stops."""
    study = found.study
    invitations.leave(found)
    if study.status in (QUEUED, RUNNING):
        desk.stop(study)
    note(desk.db, request, "site left", study, found.site, who=f"site {found.site}")
    desk.db.commit()


@router.get("/site/progress", responses=_ERRORS)
def progress(found: Site, desk: Desk) -> Progress:
    return _progress(found, desk)


def _progress(found: Invitation, desk: Desk) -> Progress:
    run = latest(found.study)
    files: list[str] = []
    if run is not None and run.status == FINISHED and found.status == JOINED:
        files = sorted(files_of(desk.folder(run), found.study.kind))
    return Progress(
        status=found.study.status, run=run.number if run else None,
        reason=run.reason if run else None, files=files,
    )  # fmt: skip


@router.get("/site/files/{name}", responses=_ERRORS, response_class=Response)
def file(found: Site, desk: Desk, name: Annotated[str, Path(max_length=100)]) -> Response:
    """A file of the results."""
    run = latest(found.study)
    if run is None or run.status != FINISHED or found.status != JOINED:
        raise HTTPException(404, "there is no such file")
    return send(run, found.study, name, desk.folder(run))
