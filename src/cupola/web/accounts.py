"""Accounts, passwords and log-ins."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
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

TOKEN, OWN = "(token)", "(logged in)"  # no name or address that a person could have
_HASHING = threading.BoundedSemaphore(4)  # each takes 64 MB
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
    """It begins with a letter or a digit: commands would take '-' for an option."""
    while not (made := secrets.token_urlsafe(32))[0].isalnum():
        pass
    return made


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
    tried = attempt(db, name, address)  # before it is judged: many at once are no way around
    try:
        hold_back(db, settings, name, address, beside=1)
    except TooOften:
        db.delete(tried)  # who waits is not made to wait longer by trying
        db.commit()
        raise
    account = db.scalar(select(Account).where(func.lower(Account.name) == name.lower()))
    known = account.password if account else _nobody(settings)
    if not _fits(settings, known, password) or account is None:
        raise Refused("name or password is wrong")
    if hasher(settings).check_needs_rehash(account.password):
        account.password = hasher(settings).hash(password)
    db.execute(delete(Attempt).where(Attempt.name == name.lower(), Attempt.address == address))
    return open_session(db, account)


def attempt(db: Session, name: str, address: str) -> Attempt:
    """Count one; the name TOKEN stands for those with a token."""
    tried = Attempt(name=name.lower(), address=address)
    db.add(tried)
    db.commit()
    return tried


def _fits(settings: Settings, known: str, password: str) -> bool:
    try:
        with _HASHING:
            return hasher(settings).verify(known, password[:LONGEST_PASSWORD])
    except (VerificationError, InvalidHashError):
        return False


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
    hold_back(db, settings, account.name, OWN)
    if not _fits(settings, account.password, old):
        attempt(db, account.name, OWN)
        raise Refused("the present password is wrong")
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


def hold_back(db: Session, settings: Settings, name: str, address: str, beside: int = 0) -> None:
    """Few failures of one name from one address, more of a name or an address as a whole: a
    stranger cannot lock somebody out by a handful of wrong passwords. Tokens, which nobody guesses,
    are counted by address alone: no stranger keeps all others from joining. beside: attempts that
    are counted already and not yet judged."""
    now, wait, tries = time.time(), settings.wait, settings.tries
    db.execute(delete(Attempt).where(Attempt.time < now - wait))
    db.commit()
    named, there = Attempt.name == name.lower(), Attempt.address == address
    rules = [(named & there, tries), (named, 4 * tries), (there, 10 * tries)]
    for rule, most in rules[:1] if name == TOKEN else rules:
        number, first = db.execute(select(func.count(), func.min(Attempt.time)).where(rule)).one()
        if number >= most + beside:
            raise TooOften(first + wait - now)


_NOBODY: dict[bool, str] = {}


def _nobody(settings: Settings) -> str:
    """A hash that no password fits, made once."""
    if settings.cheap not in _NOBODY:
        _NOBODY[settings.cheap] = hasher(settings).hash(secrets.token_hex(32))
    return _NOBODY[settings.cheap]
