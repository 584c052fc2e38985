"""Studies: the list, the form, the plan as text, and what its coordinator can do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse
from markupsafe import Markup
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, joinedload

from cupola.secure.roster import Roster
from cupola.web import demo, form_fields, invitations, organiser
from cupola.web.access import Coordinator, Db, Me, Own, Posted, Seen, note
from cupola.web.accounts import Refused
from cupola.web.kinds import Wrong, forms, kind_of
from cupola.web.models import COORDINATOR, DRAFT, INVITING, JOINED, Account, Invitation, Study
from cupola.web.plans import parse, to_text
from cupola.web.render import page
from cupola.web.study_service import StudyService, latest

router = APIRouter()
PAGE = 25


async def service_of(request: Request, db: Db) -> StudyService:
    return StudyService(db, request.app.state.settings, request.app.state.launcher)


Service = Annotated[StudyService, Depends(service_of)]


@router.get("/")
def all_studies(request: Request, db: Db, me: Me, number: int = 1, search: str = "") -> Response:
    rule = _mine(me)
    if search:
        safe = search[:100].replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        rule = rule & Study.name.ilike(f"%{safe}%", escape="\\")
    total = db.scalar(select(func.count(Study.id)).where(rule)) or 0
    pages = max(1, -(-total // PAGE))
    number = min(max(1, number), pages)
    listed = db.scalars(
        select(Study).where(rule).order_by(Study.created.desc(), Study.id)
        .options(joinedload(Study.owner)).limit(PAGE).offset((number - 1) * PAGE)
    ).all()  # fmt: skip
    return page(
        request, "studies.html", studies=listed, number=number, pages=pages, total=total,
        search=search, coordinates=me.role == COORDINATOR,
    )  # fmt: skip


def _mine(me: Account) -> Any:
    """Studies of one's own, and those that a site of one's own takes part in."""
    joined = select(Invitation.study_id).where(
        Invitation.account_id == me.id, Invitation.status == JOINED
    )
    return or_(Study.owner_id == me.id, Study.id.in_(joined))


@router.get("/studies/new")
def new_study(request: Request, me: Coordinator, kind: str = "") -> Response:
    del me
    if kind not in forms():
        return page(request, "kinds.html", kinds=forms(), problems=[], text="")
    return _form(request, kind, forms()[kind].start)


@router.post("/studies/new")
def create(request: Request, form: Posted, service: Service, me: Coordinator) -> Response:
    kind = str(form.get("kind", ""))
    if kind not in forms():
        raise HTTPException(422, f"a study's kind is one of {', '.join(forms())}")
    given = form_fields.from_form(kind, {}, form)
    try:
        study = service.create(me, kind, given)
    except Wrong as error:
        return _form(request, kind, given, error, form, status=422)
    note(service.db, request, "study made", study)
    service.db.commit()
    return RedirectResponse(f"/studies/{study.id}", 303)


@router.post("/studies/upload")
def upload(request: Request, form: Posted, service: Service, me: Coordinator) -> Response:
    """A study from a plan's text, typed or as a file."""
    text = _text(form)
    try:
        given = parse(text)
        study = service.create(me, kind_of(given), given)
    except Wrong as error:
        values: dict[str, Any] = {"kinds": forms(), "problems": error.problems, "text": text}
        return page(request, "kinds.html", status=422, **values)
    note(service.db, request, "study made", study, "from a plan's text")
    service.db.commit()
    return RedirectResponse(f"/studies/{study.id}", 303)


def _text(form: dict[str, Any]) -> str:
    file = form.get("file")
    if isinstance(file, bytes) and file:
        try:
            return file.decode("utf-8")
        except UnicodeDecodeError:
            raise HTTPException(422, "the file is not UTF-8 text; a plan is a TOML file") from None
    return str(form.get("text", ""))


def _form(
    request: Request,
    kind: str,
    given: Mapping[str, Any],
    error: Wrong | None = None,
    typed: dict[str, Any] | None = None,
    study: Study | None = None,
    status: int = 200,
) -> Response:
    at: dict[str, list[str]] = {}
    for key, said in error.problems if error else ():
        at.setdefault(form_fields.field_of(kind, key), []).append(
            said if form_fields.field_of(kind, key) in (key, "") else f"{key}: {said}"
        )
    values = {k: str(v) for k, v in typed.items()} if typed else form_fields.filled(kind, given)
    return page(
        request, "form.html", status=status, kind=kind, study=study, text=to_text(given),
        about=forms()[kind].about if kind in forms() else "",
        title=forms()[kind].title if kind in forms() else "", groups=form_fields.groups(kind),
        brings=json.dumps(form_fields.brought(kind)), values=values, problems=at,
    )  # fmt: skip


@router.get("/studies/{study_id}")
def one(request: Request, study: Seen, service: Service, me: Me) -> Response:
    return _one(request, study, service, me)


def _one(
    request: Request, study: Study, service: StudyService, me: Account, **more: Any
) -> Response:
    owner = study.owner_id == me.id
    foreseen = service.foresee(study)
    run = latest(study)
    values = {"problem": "", "tokens": [], "status": 200, **more}
    config = service.settings
    base = config.address or str(request.base_url).rstrip("/")
    there = invitations.joined(study)
    federation, given = organiser.organiser_of(config), parse(study.plan)
    roster = Roster.from_json(study.roster) if study.roster else None
    analysis, early = study.analysis, owner and study.status in (DRAFT, INVITING)
    away = organiser.has_own_data(study)
    return page(
        request, "study.html", roster=roster, unready=organiser.unready(study) if roster else [],
        federation=federation.settings if federation else None,
        roles={i.site: i.role for i in study.invitations},
        study=study, owner=owner, run=run, foreseen=foreseen, base=base,
        foreseen_body=_foreseen_body(study, foreseen),
        changeable=owner and study.status == DRAFT,
        invitable=early and analysis.takes_sites(given, federation is not None),
        startable=early and (study.real or not away),
        away=away or not analysis.takes_sites(given), chooses=analysis.unchosen is not None,
        here=sorted(analysis.data_sets(config.data)) if owner and not study.real else [],
        mine=[i for i in there if i.account_id == me.id], joined=len(there), **values,
    )  # fmt: skip


def _foreseen_body(study: Study, facts: dict[str, Any] | None) -> Markup:
    if facts is None or "error" in facts:
        return Markup("")
    return Markup("\n".join(study.analysis.foreseen_sections(facts)))


@router.get("/studies/{study_id}/foreseen")
def foreseen(study: Seen, service: Service) -> dict[str, bool]:
    """Whether what was to be foreseen is known; asked by the page's script."""
    return {"known": service.foresee(study) is not None}


@router.get("/studies/{study_id}/plan.toml")
def plan_text(study: Seen) -> Response:
    name = {"Content-Disposition": f'attachment; filename="{study.id}.toml"'}
    return PlainTextResponse(study.plan, headers=name, media_type="application/toml")


@router.get("/studies/{study_id}/edit")
def edit(request: Request, study: Own) -> Response:
    return _form(request, study.kind, parse(study.plan), study=study)


@router.post("/studies/{study_id}/edit")
def save(request: Request, form: Posted, study: Own, service: Service) -> Response:
    """The form, or the plan's text if that was sent."""
    given = parse(study.plan)
    as_text = "text" in form or isinstance(form.get("file"), bytes)
    try:
        given = parse(_text(form)) if as_text else form_fields.from_form(study.kind, given, form)
        service.change(study, given)
    except Wrong as error:
        typed = None if as_text else form
        return _form(request, study.kind, given, error, typed, study, status=422)
    note(service.db, request, "plan changed", study)
    service.db.commit()
    return RedirectResponse(f"/studies/{study.id}", 303)


@router.post("/studies/{study_id}/invite")
def invite(request: Request, form: Posted, study: Own, service: Service) -> Response:
    names = str(form.get("sites", "")).replace(",", "\n").splitlines()
    federation = organiser.organiser_of(service.settings) if form.get("real") else None
    if form.get("real") and federation is None:
        raise Refused("this server has no federation: start it with --federation")
    tokens = invitations.invite(study, names, federation)
    _set_minimum(study, str(form.get("minimum", "")))
    for site, _ in tokens:
        note(service.db, request, "site invited", study, site)
    service.db.commit()
    return _to_tokens(request, study, tokens)


def _to_tokens(request: Request, study: Study, tokens: list[tuple[str, str]]) -> Response:
    key = request.app.state.secrets.put(request.state.cookie, (study.id, tokens))
    return RedirectResponse(f"/studies/{study.id}/tokens/{key}", 303)


@router.get("/studies/{study_id}/tokens/{key}")
def tokens(request: Request, key: str, study: Own, service: Service, me: Coordinator) -> Response:
    """The study with tokens that were made just now."""
    whose, shown = request.app.state.secrets.get(request.state.cookie, key) or ("", [])
    if whose != study.id:
        return RedirectResponse(f"/studies/{study.id}", 303)
    return _one(request, study, service, me, tokens=shown)


@router.post("/studies/{study_id}/play")
def play(request: Request, form: Posted, study: Own, service: Service, me: Coordinator) -> Response:
    """Data sets of this machine take part as sites."""
    chosen = [name for name in str(form.get("data", "")).split("\n") if name]
    known = study.analysis.data_sets(service.settings.data)
    if any(name not in known for name in chosen) or not chosen:
        raise Refused("choose data sets of this machine")
    demo.play(service, me, study, chosen)
    note(service.db, request, "sites played here", study, ", ".join(chosen))
    service.db.commit()
    return RedirectResponse(f"/studies/{study.id}", 303)


def _set_minimum(study: Study, text: str) -> None:
    if text.strip():
        if not text.strip().isdigit() or not 1 <= int(text) <= invitations.MOST:
            raise Refused("the fewest sites are a whole number above 0")
        study.minimum = int(text)


@router.post("/studies/{study_id}/renew/{number}")
def renew(request: Request, number: int, form: Posted, study: Own, service: Service) -> Response:
    del form
    found = _invitation(service.db, study, number)
    token = invitations.renew(found)
    note(service.db, request, "new token", study, found.site)
    service.db.commit()
    return _to_tokens(request, study, [(found.site, token)])


def _invitation(db: Session, study: Study, number: int) -> Invitation:
    found = db.get(Invitation, number) if 0 < number < 2**31 else None
    if found is None or found.study_id != study.id:
        raise HTTPException(404, "there is no such invitation")
    return found


@router.post("/studies/{study_id}/{action}")
def act(
    request: Request, action: str, form: Posted, study: Own, service: Service, me: Coordinator
) -> Response:
    del form
    where = f"/studies/{study.id}"
    if action == "start":
        where += f"/runs/{service.start(study).number}"
    elif action == "stop":
        service.stop(study)
        where += f"/runs/{study.runs[-1].number}"  # where its end is seen
    elif action == "resume":
        where += f"/runs/{service.resume(study).number}"
    elif action == "repeat":
        study = service.repeat(study, me)
        where = f"/studies/{study.id}"
    elif action == "delete":
        note(service.db, request, "study: delete", study, study.name)
        service.delete(study)
        service.db.commit()
        return RedirectResponse("/", 303)
    else:
        raise HTTPException(404, "there is no such page")
    note(service.db, request, f"study: {action}", study)
    service.db.commit()
    return RedirectResponse(where, 303)
