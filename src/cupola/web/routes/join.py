"""Sites join: a token is used up, the site reads what it will reveal, and answers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from cupola.web import accounts, invitations
from cupola.web.access import Config, Db, Me, Posted, Visitor, address_of, note
from cupola.web.accounts import Refused
from cupola.web.models import ASKED, PARTICIPANT, Account, Invitation
from cupola.web.render import page
from cupola.web.routes.study import Service

router = APIRouter()


@router.get("/join")
def join_page(request: Request, found: Visitor) -> Response:
    del found
    return page(request, "join.html", problem="", name="")


@router.post("/join")
def join(request: Request, form: Posted, db: Db, config: Config, found: Visitor) -> Response:
    """Who has no account yet makes one with the token."""
    token, name = str(form.get("token", "")).strip(), str(form.get("name", "")).strip()
    cookie = None
    try:
        accounts.limit_attempts(db, config, accounts.TOKEN, address_of(request))
        open_ = invitations.find(db, token)
        if open_ is None:
            accounts.attempt(db, accounts.TOKEN, address_of(request))
            raise Refused("this token is wrong, or was used already")
        if open_.study.real:
            raise Refused(
                "this token is for a machine of its own: use it with `cupola site open` or `cupola "
                f"{open_.role} join` there; it was not used up"
            )
        who = found
        if who is None:
            password = str(form.get("password", ""))
            who = accounts.create(db, config, name, password, PARTICIPANT)
        taken, _ = invitations.take(db, config, token, who)
        taken.key = None  # a browser needs none
        if found is None:
            cookie = accounts.open_session(db, config, who)
    except Refused as error:
        db.rollback()
        return page(request, "join.html", status=422, problem=str(error), name=name)
    if cookie is not None:
        request.state.cookie = cookie
        request.state.mark = accounts.new_mark(config, who)
    note(db, request, "token used", taken.study_id, taken.site, who=who)
    db.commit()
    return RedirectResponse(f"/join/{taken.id}", 303)


def _mine(db: Any, me: Account, number: int) -> Invitation:
    found = db.get(Invitation, number) if 0 < number < 2**31 else None
    if found is None or found.account_id != me.id:
        raise HTTPException(404, "there is no such invitation")
    return found


@router.get("/join/{number}")
def asked(request: Request, number: int, db: Db, service: Service, me: Me) -> Response:
    found = _mine(db, me, number)
    sets = sorted(found.study.analysis.data_sets(service.settings.data))
    answers, problem = None, ""
    try:
        answers = service.asks(found.study)
    except Refused as error:
        problem = str(error)
    return page(
        request, "asked.html", invitation=found, study=found.study, sets=sets, problem=problem,
        chooses=found.study.analysis.unchosen is not None,
        answers=answers, foreseen=found.study.foreseen or {}, open=found.status == ASKED,
    )  # fmt: skip


@router.get("/join/{number}/foreseen")
def foreseen(number: int, db: Db, service: Service, me: Me) -> dict[str, bool]:
    """Whether what the study asks is known; asked by the page's script."""
    try:
        return {"known": service.asks(_mine(db, me, number).study) is not None}
    except Refused:
        return {"known": True}  # why it is not is said on the page


@router.post("/join/{number}/{answer}")
def answer(
    request: Request, number: int, answer: str, form: Posted, db: Db, service: Service, me: Me
) -> Response:
    found = _mine(db, me, number)
    study = found.study
    if answer == "accept":
        service.accept(found, str(form.get("data", "")) or None)
        where = f"/studies/{study.id}"
    elif answer == "decline":
        invitations.decline(found)
        where = f"/join/{number}"
    elif answer == "leave":
        service.leave(found)
        where = "/"
    else:
        raise HTTPException(404, "there is no such page")
    words = {"accept": "site joined", "decline": "site declined", "leave": "site left"}
    note(db, request, words[answer], study, found.site)
    db.commit()
    return RedirectResponse(where, 303)
