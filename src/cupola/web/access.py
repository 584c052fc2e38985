"""Who asks, and what they may see; used as dependencies of routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.datastructures import UploadFile

from cupola.web import accounts
from cupola.web.models import COORDINATOR, JOINED, Account, Event, Invitation, Run, Study
from cupola.web.security_middleware import form_token, same
from cupola.web.settings import Settings


class LogIn(Exception):
    """A page that needs an account was asked for without one."""


async def settings_of(request: Request) -> Settings:
    found: Settings = request.app.state.settings
    return found


def database(request: Request) -> Iterator[Session]:
    """A session that takes a connection when it is first used, and gives it back before the answer
    is sent: nobody's slow reading keeps one."""
    with request.app.state.sessions() as db:
        yield db


Config = Annotated[Settings, Depends(settings_of)]
Db = Annotated[Session, Depends(database, scope="function")]


def visitor(request: Request, db: Db) -> Account | None:
    """Whoever is logged in; who came without a cookie is not looked for."""
    found = None if request.state.new else accounts.who(db, request.state.cookie)
    request.state.account = found
    return found


Visitor = Annotated[Account | None, Depends(visitor)]


async def account(request: Request, found: Visitor) -> Account:
    if found is None:
        if request.url.path.startswith("/api/"):
            raise HTTPException(401, "log in first")
        raise LogIn
    return found


Me = Annotated[Account, Depends(account)]


async def coordinator(me: Me) -> Account:
    if me.role != COORDINATOR:
        raise HTTPException(403, "this page is for coordinators")
    return me


Coordinator = Annotated[Account, Depends(coordinator)]


async def posted(request: Request, config: Config) -> dict[str, Any]:
    """The fields of a form that carries this visitor's token; files as bytes."""
    origin = request.headers.get("sec-fetch-site", "same-origin")
    if origin not in ("same-origin", "none"):
        raise HTTPException(403, "this form was sent from another site")
    await request.body()  # all of it, which is bounded, before any of it is looked at
    try:
        form = await request.form(max_files=4, max_fields=400)
    except ValueError:
        raise HTTPException(400, "this is not a form") from None
    found: dict[str, Any] = {}
    for name, value in form.multi_items():
        held = await value.read() if isinstance(value, UploadFile) else value
        if name in found and isinstance(held, str):
            found[name] = f"{found[name]}\n{held}"  # several boxes of one name
        else:
            found[name] = held
    await form.close()
    token = found.pop("csrf", "")
    good = isinstance(token, str) and same(token, form_token(config, request.state.cookie))
    if not good:
        raise HTTPException(403, "this form is too old or was not made for you; load it again")
    return found


Posted = Annotated[dict[str, Any], Depends(posted)]


def may_see(db: Session, me: Account, study_id: str) -> Study:
    """A study of one's own, or one that a site of one's own takes part in."""
    study = db.get(Study, study_id) if len(study_id) <= 16 else None
    if study is not None and study.owner_id != me.id:
        inside = select(Invitation.id).where(
            Invitation.study_id == study_id,
            Invitation.account_id == me.id,
            Invitation.status == JOINED,
        )
        study = study if db.scalar(inside.limit(1)) else None
    if study is None:
        raise HTTPException(404, "there is no such study")
    return study


def seen_study(study_id: str, db: Db, me: Me) -> Study:
    return may_see(db, me, study_id)


def own_study(study_id: str, db: Db, me: Coordinator) -> Study:
    study = may_see(db, me, study_id)
    if study.owner_id != me.id:
        raise HTTPException(403, "only its coordinator may do this")
    return study


Seen = Annotated[Study, Depends(seen_study)]
Own = Annotated[Study, Depends(own_study)]


def seen_run(number: int, study: Seen, db: Db) -> Run:
    run = None
    if 0 < number < 1_000_000:
        run = db.scalar(select(Run).where(Run.study_id == study.id, Run.number == number))
    if run is None:
        raise HTTPException(404, "there is no such run")
    return run


SeenRun = Annotated[Run, Depends(seen_run)]


def note(
    db: Session,
    request: Request,
    action: str,
    study: Study | str | None = None,
    detail: str = "",
    who: Account | str | None = None,
) -> None:
    """Write a line of the audit page; the caller commits."""
    found = who if who is not None else getattr(request.state, "account", None)
    name = found.name if isinstance(found, Account) else found or "nobody"
    db.add(
        Event(
            account_id=found.id if isinstance(found, Account) else None,
            who=name[:100],
            address=address_of(request),
            action=action,
            study_id=study.id if isinstance(study, Study) else study,
            detail=detail[:300],
        )
    )


def address_of(request: Request) -> str:
    return (request.client.host if request.client else "unknown")[:64]
