"""For programs: what scripts of sites use; described by /openapi.json."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import joinedload, selectinload

from cupola.secure.roster import Roster
from cupola.web import accounts, invitations, organiser
from cupola.web.access import Config, Db, Me, address_of, may_see, note
from cupola.web.accounts import Refused
from cupola.web.models import (
    ASKED,
    COMPENSATOR,
    FINISHED,
    JOINED,
    QUEUED,
    SITE,
    Invitation,
    Study,
)
from cupola.web.plans import plan_of
from cupola.web.progress import last_event
from cupola.web.routes.result import files_of, send
from cupola.web.routes.study import Service, _mine
from cupola.web.study_service import latest

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
    """A kind of answer that a site is asked for."""

    task: str
    times: int | None = Field(description="None: that depends on answers.")
    numbers: int
    bytes: int | None
    reveals: str
    to: str
    protection: str


class Terms(BaseModel):
    """Of a study at real sites. The first four stand in FLARE's invitation of the party."""

    federation: str
    name: str
    kind: str
    coordinator: str = Field(description="host:port of the federation's coordinator.")
    authority: str = Field(description="Fingerprint of its root certificate, to compare by voice.")
    study: str = Field(description="What rosters and folders call the study.")
    sites: int = Field(description="How many are invited.")
    minimum: int = Field(description="Fewest sites in a total.")
    compensator: str | None


class Asked(BaseModel):
    """What a site is asked to take part in."""

    study: StudyFacts
    site: str
    role: str
    real: Terms | None = Field(description="None: the server simulates all sites.")
    answer: str
    plan: str = Field(description="TOML.")
    questions: list[Question] | None = Field(
        description="As the study's rehearsal has them. None: that is being worked out; ask again. "
        "Of a real study also None: its parties work it out for themselves."
    )
    problem: str = Field(description="Why it cannot be said what the study asks; else empty.")
    data_sets: list[str] = Field(description="To choose from; empty where there is no choice.")


class Joining(BaseModel):
    token: str = Field(min_length=1, max_length=200)


class Joined(BaseModel):
    key: str = Field(description="For the header 'Authorization: Bearer KEY'; told once.")
    asked: Asked


class Accepting(BaseModel):
    data: str | None = Field(default=None, max_length=300, description="One of data_sets.")
    public: dict[str, str] | None = Field(
        default=None, max_length=3, description="A real party's public keys: name, sign, seal."
    )


class Signing(BaseModel):
    request: str = Field(max_length=100_000, description="A certificate request's zip, base64.")


class Signed(BaseModel):
    signed: str = Field(description="The certificate and what belongs to it: a zip, base64.")


class Agreed(BaseModel):
    study: str
    plan: str = Field(description="TOML, as the sites of the roster carry it out.")
    roster: str = Field(description="JSON: every party's public keys, to be pinned.")


class Pinned(BaseModel):
    roster: str = Field(max_length=64, description="The digest of the roster that was pinned.")


class Progress(BaseModel):
    """How far the study is."""

    status: str
    run: int | None
    reason: str | None
    resumable: bool = Field(description="It was stopped or failed, and may go on.")
    files: list[str]
    waiting: list[str] = Field(description="Parties that have not pinned the roster.")
    phase: str
    done: float
    of: float
    left: float | None = Field(description="Seconds, about.")


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


def _asked(found: Invitation, service: Service) -> Asked:
    study, config = found.study, service.settings
    facts = _facts(study)
    facts.sites = {found.site: found.status}  # who else was asked is not a site's business
    rows, problem = None, ""
    try:
        rows = None if study.real else service.asks(study)
    except Refused as error:
        problem = str(error)
    return Asked(
        study=facts, site=found.site, role=found.role, answer=found.status,
        real=_terms(found, config) if study.real else None, plan=_plan(study),
        questions=None if rows is None else [Question(**row) for row in rows], problem=problem,
        data_sets=[] if study.real else sorted(study.analysis.data_sets(config.data)),
    )  # fmt: skip


def _plan(study: Study) -> str:
    """The plan with the sites that are invited, or those that the roster names."""
    if not study.real:
        return study.plan
    sites = [i for i in study.invitations if i.role == SITE]
    if study.roster is not None:
        sites = [i for i in sites if i.status == JOINED]
    return organiser.plan_text(study, [i.site for i in sites])


def _terms(found: Invitation, config: Config) -> Terms:
    study, federation = found.study, organiser.organiser_of(config)
    if federation is None:
        raise Refused("the server was started without its federation")
    invited = federation.invited(found.site)
    third = [i.site for i in study.invitations if i.role == COMPENSATOR]
    return Terms(
        federation=invited.federation, name=invited.name, kind=invited.kind,
        coordinator=invited.coordinator, authority=invited.authority,
        study=organiser.name_of(study), sites=sum(i.role == SITE for i in study.invitations),
        minimum=plan_of(study).sum.minimum,
        compensator=third[0] if third else None,
    )  # fmt: skip


@router.get("/studies", responses=_ERRORS)
def studies(db: Db, me: Me, start: Annotated[int, Query(ge=0, le=10**6)] = 0) -> list[StudyFacts]:
    """A hundred studies of yours, the newest first, from `start` on."""
    found = db.scalars(
        select(Study).where(_mine(me)).order_by(Study.created.desc(), Study.id)
        .options(joinedload(Study.owner), selectinload(Study.invitations))
        .limit(100).offset(start)
    )  # fmt: skip
    return [_facts(study) for study in found]


@router.get("/studies/{study_id}", responses=_ERRORS)
def study(study_id: Id, db: Db, me: Me) -> StudyFacts:
    return _facts(may_see(db, me, study_id))


@router.post("/join", responses=_ERRORS)
def join(request: Request, given: Joining, db: Db, config: Config, service: Service) -> Joined:
    """Exchange a token for a key. The token is useless afterwards."""
    accounts.limit_attempts(db, config, accounts.TOKEN, address_of(request))
    if invitations.find(db, given.token) is None:
        accounts.attempt(db, accounts.TOKEN, address_of(request))
        raise HTTPException(404, "this token is wrong, or was used already")
    found, key = invitations.take(db, config, given.token, None)
    note(db, request, "token used", found.study_id, found.site, who=f"site {found.site}")
    db.commit()
    return Joined(key=key, asked=_asked(found, service))


@router.get("/site", responses=_ERRORS)
def asked(found: Site, service: Service) -> Asked:
    """What the site was asked, and what it answered."""
    return _asked(found, service)


@router.post("/site/accept", responses=_ERRORS)
def accept(request: Request, given: Accepting, found: Site, service: Service) -> Progress:
    """Take part; the study starts when all have answered so."""
    service.accept(found, given.data, given.public)
    note(service.db, request, "site joined", found.study, found.site, who=f"site {found.site}")
    service.db.commit()
    return _progress(found, service)


@router.post("/site/certificate", responses=_ERRORS)
def certificate(request: Request, given: Signing, found: Site, db: Db, config: Config) -> Signed:
    """Sign a real party's certificate request; its private key stays where it was made."""
    federation = organiser.organiser_of(config)
    if federation is None or not found.study.real or found.status not in (ASKED, JOINED):
        raise Refused("this study is simulated: its sites need no certificates")
    if not (found.study.owner.manager or federation.has_signed(found.site)):
        raise Refused("only a token of the first coordinator gives a name its first certificate")
    signed = federation.sign(found.site, given.request)
    note(db, request, "certificate signed", found.study, found.site, who=f"site {found.site}")
    db.commit()
    return Signed(signed=signed)


@router.get("/site/roster", responses=_ERRORS)
def roster(found: Site) -> Agreed:
    """Who takes part with which keys; 404 until that is settled."""
    study = found.study
    if study.roster is None or found.status != JOINED:
        raise HTTPException(404, "who takes part is not settled yet")
    return Agreed(study=organiser.name_of(study), plan=_plan(study), roster=study.roster)


@router.post("/site/ready", status_code=204, responses=_ERRORS)
def ready(request: Request, given: Pinned, found: Site, db: Db) -> None:
    """The party has pinned the roster; the study begins when all have."""
    study = found.study
    if study.roster is None or found.status != JOINED:
        raise HTTPException(404, "who takes part is not settled yet")
    if given.roster != Roster.from_json(study.roster).digest.hex():
        raise Refused("another roster was pinned; do not go on, and tell the others")
    found.ready = True
    note(db, request, "roster pinned", study, found.site, who=f"site {found.site}")
    db.commit()


@router.post("/site/decline", status_code=204, responses=_ERRORS)
def decline(request: Request, found: Site, db: Db) -> None:
    invitations.decline(found)
    note(db, request, "site declined", found.study, found.site, who=f"site {found.site}")
    db.commit()


@router.post("/site/leave", status_code=204, responses=_ERRORS)
def leave(request: Request, found: Site, service: Service) -> None:
    """Take part no longer. A running study stops."""
    service.leave(found)
    note(service.db, request, "site left", found.study, found.site, who=f"site {found.site}")
    service.db.commit()


@router.get("/site/progress", responses=_ERRORS)
def progress(found: Site, service: Service) -> Progress:
    return _progress(found, service)


def _progress(found: Invitation, service: Service) -> Progress:
    run = latest(found.study)
    files: list[str] = []
    if run is not None and run.status == FINISHED and found.status == JOINED:
        files = sorted(files_of(service.folder(run), found.study))
    last = last_event(service.folder(run)) if run else {}
    queued = found.study.real and found.study.status == QUEUED
    return Progress(
        status=found.study.status, run=run.number if run else None,
        reason=run.reason if run else None, files=files, resumable=service.can_resume(found.study),
        waiting=organiser.unready(found.study) if queued else [], phase=str(last.get("phase", "")),
        done=last.get("done") or 0, of=last.get("of") or 0, left=last.get("left"),
    )  # fmt: skip


@router.get("/site/files/{name}", responses=_ERRORS, response_class=Response)
def file(found: Site, service: Service, name: Annotated[str, Path(max_length=100)]) -> Response:
    """A file of the results."""
    run = latest(found.study)
    if run is None or run.status != FINISHED or found.status != JOINED:
        raise HTTPException(404, "there is no such file")
    return send(run, found.study, name, service.folder(run))
