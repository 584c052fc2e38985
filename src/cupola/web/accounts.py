"""Accounts, passwords and log-ins."""

from __future__ import annotations

import hashlib
import re
import secrets
import time

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cupola.errors import CupolaError
from cupola.web.models import (
    ASKED,
    COORDINATOR,
    INVITING,
    JOINED,
    LEFT,
    PARTICIPANT,
    QUEUED,
    RUNNING,
    Account,
    Attempt,
    Event,
    Invitation,
    Login,
    Study,
)
from cupola.web.settings import Settings

IDLE, LONGEST = 12 * 3600.0, 7 * 24 * 3600.0  # seconds without a request, seconds in all
SHORTEST, LONGEST_PASSWORD = 10, 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{1,63}")


class Refused(CupolaError):
    """What a person asked for cannot be done; the text says why."""


class TooOften(Refused):
    """Too many log-ins failed. wait: seconds until the next may be tried."""

    def __init__(self, wait: float) -> None:
        self.wait = max(1, round(wait))
        super().__init__(f"too many log-ins failed; try again in {self.wait} seconds")


def digest(token: str) -> str:
    """What is kept of a token; it has 256 random bits, so that a plain hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def new_token() -> str:
    return secrets.token_urlsafe(32)


def hasher(settings: Settings) -> PasswordHasher:
    """Argon2id with the library's defaults (RFC 9106, low memory)."""
    return PasswordHasher(1, 8, 1) if settings.cheap else PasswordHasher()


def create(
    db: Session, settings: Settings, name: str, password: str, role: str, manager: bool = False
) -> Account:
    """A new account; the caller commits."""
    if not _NAME.fullmatch(name):
        raise Refused("a name has 2 to 64 letters, digits or . _ @ - and begins with one of them")
    if not SHORTEST <= len(password) <= LONGEST_PASSWORD:
        raise Refused(f"a password has {SHORTEST} to {LONGEST_PASSWORD} characters")
    if role not in (COORDINATOR, PARTICIPANT):
        raise Refused(f"a role is {COORDINATOR} or {PARTICIPANT}")
    taken = Refused(f"the name '{name}' is taken")
    if db.scalar(select(Account.id).where(func.lower(Account.name) == name.lower())):
        raise taken
    made = Account(name=name, password=hasher(settings).hash(password), role=role, manager=manager)
    db.add(made)
    try:
        db.flush()
    except IntegrityError:
        raise taken from None
    return made


def log_in(db: Session, settings: Settings, name: str, password: str, address: str) -> str:
    """The cookie of a new session. Failures are counted, and a name that does not exist takes as
    long as a wrong password."""
    name, address = name[:64], address[:64]
    hold_back(db, settings, name, address)
    account = db.scalar(select(Account).where(func.lower(Account.name) == name.lower()))
    known = account.password if account else _nobody(settings)
    try:
        hasher(settings).verify(known, password[:LONGEST_PASSWORD])
    except (VerificationError, InvalidHashError):
        account = None
    if account is None:
        db.add(Attempt(name=name.lower(), address=address))
        db.commit()
        raise Refused("name or password is wrong")
    if hasher(settings).check_needs_rehash(account.password):
        account.password = hasher(settings).hash(password)
    db.execute(delete(Attempt).where(Attempt.name == name.lower(), Attempt.address == address))
    return open_session(db, account)


def open_session(db: Session, account: Account) -> str:
    """A new session's cookie; old sessions that ran out go."""
    now, token = time.time(), new_token()
    db.execute(delete(Login).where((Login.seen < now - IDLE) | (Login.created < now - LONGEST)))
    db.add(Login(token=digest(token), account_id=account.id))
    db.commit()
    return token


def who(db: Session, cookie: str) -> Account | None:
    """Whose session this is, if it has not run out."""
    now = time.time()
    found = db.scalar(select(Login).where(Login.token == digest(cookie)))
    if found is None or found.seen < now - IDLE or found.created < now - LONGEST:
        return None
    if found.seen < now - 60:
        found.seen = now
        db.commit()
    return found.account


def log_out(db: Session, cookie: str) -> None:
    db.execute(delete(Login).where(Login.token == digest(cookie)))
    db.commit()


def change_password(
    db: Session, settings: Settings, account: Account, old: str, new: str, keep: str
) -> None:
    """All other sessions of the account end; the one with the cookie `keep` goes on."""
    try:
        hasher(settings).verify(account.password, old)
    except VerificationError:
        raise Refused("the present password is wrong") from None
    if not SHORTEST <= len(new) <= LONGEST_PASSWORD:
        raise Refused(f"a password has {SHORTEST} to {LONGEST_PASSWORD} characters")
    account.password = hasher(settings).hash(new)
    db.execute(delete(Login).where(Login.account_id == account.id, Login.token != digest(keep)))


def delete_account(db: Session, account: Account) -> None:
    """The account with its sessions; lines of the audit page keep the name. Sites it spoke for
    leave studies that have not begun."""
    if account.manager:
        raise Refused("the first coordinator's account stays: somebody must see the whole audit")
    if db.scalar(select(Study.id).where(Study.owner_id == account.id).limit(1)):
        raise Refused(f"'{account.name}' has studies; delete them first")
    for found in db.scalars(select(Invitation).where(Invitation.account_id == account.id)):
        if found.study.status in (QUEUED, RUNNING) and found.status == JOINED:
            raise Refused(f"'{account.name}' takes part in a study that is running")
        if found.study.status == INVITING and found.status in (ASKED, JOINED):
            found.status, found.key = LEFT, None
        found.account_id = None
    db.execute(update(Event).where(Event.account_id == account.id).values(account_id=None))
    db.execute(delete(Login).where(Login.account_id == account.id))
    db.delete(account)
    db.flush()


def hold_back(db: Session, settings: Settings, name: str, address: str) -> None:
    """Few failures of one name from one address, more of a name or an address as a whole: a
    stranger cannot lock somebody out by a handful of wrong passwords."""
    now, wait, tries = time.time(), settings.wait, settings.tries
    db.execute(delete(Attempt).where(Attempt.time < now - wait))
    db.commit()
    named, there = Attempt.name == name.lower(), Attempt.address == address
    for rule, most in ((named & there, tries), (named, 4 * tries), (there, 10 * tries)):
        number, first = db.execute(select(func.count(), func.min(Attempt.time)).where(rule)).one()
        if number >= most:
            raise TooOften(first + wait - now)


_NOBODY: dict[bool, str] = {}


def _nobody(settings: Settings) -> str:
    """A hash that no password fits, made once."""
    if settings.cheap not in _NOBODY:
        _NOBODY[settings.cheap] = hasher(settings).hash(secrets.token_hex(32))
    return _NOBODY[settings.cheap]
