"""Log-in, accounts, and the audit page."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from cupola.web import accounts
from cupola.web.access import Config, Coordinator, Db, Me, Posted, Visitor, address_of, note
from cupola.web.accounts import RateLimited, Refused
from cupola.web.models import Account, Event, Study
from cupola.web.render import page

router = APIRouter()
PAGE, LISTED = 50, 200


def place(back: Any) -> str:
    """A page of ours to go to; never another host."""
    text = str(back or "/")
    ours = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if ours and "\\" not in text else "/"


@router.get("/login")
def log_in_page(request: Request, found: Visitor, back: str = "/") -> Response:
    if found is not None:
        return RedirectResponse(place(back), 303)
    return page(request, "login.html", back=place(back), name="", problem="")


@router.post("/login")
def log_in(request: Request, form: Posted, db: Db, config: Config) -> Response:
    name, back = str(form.get("name", "")), place(form.get("back"))
    try:
        password, mark = str(form.get("password", "")), request.state.mark
        token, mark = accounts.log_in(db, config, name, password, address_of(request), mark)
    except RateLimited as error:
        _note_once(db, request, "log-in held back", name, config.wait)
        status, said = 429, error
        answer = page(request, "login.html", status=status, back=back, name=name, problem=str(said))
        answer.headers["Retry-After"] = str(error.wait)
        return answer
    except Refused as error:
        _note_failed(db, request, name, config.wait)
        return page(request, "login.html", status=401, back=back, name=name, problem=str(error))
    accounts.log_out(db, request.state.cookie)  # what this browser was before
    request.state.cookie, request.state.mark = token, mark
    note(db, request, "logged in", who=accounts.who(db, token))
    db.commit()
    return RedirectResponse(back, 303)


def _note_failed(db: Session, request: Request, name: str, wait: float) -> None:
    """A line each, up to so many in a while: strangers with many addresses cannot fill the disk."""
    since = Event.time > time.time() - wait
    rule = select(func.count(Event.id)).where(since, Event.action == "log-in failed")
    if (db.scalar(rule) or 0) < LISTED:
        note(db, request, "log-in failed", who=name or "nobody")
        db.commit()


def _note_once(db: Session, request: Request, action: str, name: str, wait: float) -> None:
    """A line for an address, not for every try: strangers cannot fill the disk."""
    since, there = time.time() - wait, Event.address == address_of(request)
    rule = select(Event.id).where(Event.time > since, there, Event.action == action)
    if db.scalar(rule.limit(1)) is None:
        note(db, request, action, who=name or "nobody")
        db.commit()


@router.post("/logout")
def log_out(request: Request, form: Posted, db: Db, me: Me) -> Response:
    del form
    accounts.log_out(db, request.state.cookie)
    request.state.cookie = accounts.new_token()
    note(db, request, "logged out", who=me)
    db.commit()
    return RedirectResponse("/login", 303)


@router.get("/account")
def own_account(request: Request, me: Me) -> Response:
    del me
    return page(request, "account.html", problem="", done="")


@router.post("/account")
def change_password(request: Request, form: Posted, db: Db, config: Config, me: Me) -> Response:
    try:
        accounts.change_password(
            db, config, me, str(form.get("old", "")), str(form.get("new", "")), request.state.cookie
        )
    except Refused as error:
        return page(request, "account.html", status=422, problem=str(error), done="")
    note(db, request, "password changed")
    db.commit()
    done = "The password was changed; other sessions have ended."
    return page(request, "account.html", problem="", done=done)


@router.post("/accounts/{number}/delete")
def delete_account(
    request: Request, number: int, form: Posted, db: Db, me: Coordinator
) -> Response:
    """The first coordinator deletes others' accounts."""
    del form
    if not me.manager:
        raise HTTPException(403, "only the first coordinator deletes accounts")
    found = db.get(Account, number) if 0 < number < 2**31 else None
    if found is None:
        raise HTTPException(404, "there is no such account")
    note(db, request, "account deleted", detail=found.name)
    accounts.delete_account(db, found)
    db.commit()
    return RedirectResponse("/accounts", 303)


@router.get("/accounts")
def all_accounts(
    request: Request, db: Db, me: Coordinator, number: int = 1, made: str = ""
) -> Response:
    del me
    new = request.app.state.secrets.get(request.state.cookie, made)
    return _accounts(request, db, number, made=new)


def _accounts(request: Request, db: Session, number: int = 1, **more: Any) -> Response:
    total = db.scalar(select(func.count(Account.id))) or 0
    pages = max(1, -(-total // PAGE))
    number = min(max(1, number), pages)
    listed = db.scalars(
        select(Account).order_by(Account.name).limit(PAGE).offset((number - 1) * PAGE)
    ).all()
    values = {"problem": "", "made": None, **more}
    return page(
        request, "accounts.html", accounts=listed, number=number, pages=pages, total=total, **values
    )


@router.post("/accounts")
def new_account(
    request: Request, form: Posted, db: Db, config: Config, me: Coordinator
) -> Response:
    del me
    name, role = str(form.get("name", "")), str(form.get("role", ""))
    password = secrets.token_urlsafe(12)
    try:
        accounts.create(db, config, name, password, role)
    except Refused as error:
        db.rollback()
        return _accounts(request, db, status=422, problem=str(error))
    note(db, request, "account made", detail=f"{name} ({role})")
    db.commit()
    key = request.app.state.secrets.put(request.state.cookie, (name, password))
    return RedirectResponse(f"/accounts?made={key}", 303)


@router.get("/audit")
def audit(request: Request, db: Db, me: Coordinator, number: int = 1) -> Response:
    """What happened: to one's own studies and account; the manager sees everything."""
    rule = True
    if not me.manager:
        mine = select(Study.id).where(Study.owner_id == me.id)
        rule = or_(Event.account_id == me.id, Event.study_id.in_(mine))  # type: ignore[assignment]
    number = min(max(1, number), 100_000)
    found = db.scalars(
        select(Event).where(rule).order_by(Event.id.desc())  # type: ignore[arg-type]
        .limit(PAGE + 1).offset((number - 1) * PAGE)
    ).all()  # fmt: skip
    return page(request, "audit.html", events=found[:PAGE], number=number, more=len(found) > PAGE)
