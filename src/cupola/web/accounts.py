"""Accounts, passwords and log-ins."""

from __future__ import annotations

import hashlib
import ipaddress
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
from cupola.web.signed_tokens import BROWSER, SESSION, browser_of, sign

TOKEN, OWN = "(token)", "(logged in)"  # no name or address that a person could have
IDLE, LONGEST = 12 * 3600.0, 7 * 24 * 3600.0  # seconds without a request, seconds in all
SHORTEST, LONGEST_PASSWORD = 10, 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{1,63}")


class Refused(CupolaError):
    """What a person asked for cannot be done; the text says why."""


class RateLimited(Refused):
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
    """Argon2id (RFC 9106, low memory), on one core: the others are for pages. The gate bounds how
    many there are at once."""
    return PasswordHasher(1, 8, 1) if settings.cheap else PasswordHasher(parallelism=1)


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


def log_in(
    db: Session, settings: Settings, name: str, password: str, address: str, mark: str | None = None
) -> tuple[str, str]:
    """The cookie of a new session, and the mark of this browser, by which it is known next time.

    Failures are counted by name and address together, or by name and browser if the account was
    logged in to from it before: nobody's wrong passwords lock the owner out. A name that does not
    exist takes as long as a wrong password."""
    name = name[:64]
    account = db.scalar(select(Account).where(func.lower(Account.name) == name.lower()))
    browser = browser_of(settings, account.id, mark) if account else None
    place = network(address) if browser is None else f"browser {browser}"[:64]
    tried = attempt(db, name, place)  # before it is judged: many at once are no way around
    try:
        limit_attempts(db, settings, name, place, beside=1, alone=browser is not None)
    except RateLimited:
        db.delete(tried)  # who waits is not made to wait longer by trying
        db.commit()
        raise
    known = account.password if account else _nobody(settings)
    db.commit()  # no connection is held while it is hashed
    if not _fits(settings, known, password) or account is None:
        raise Refused("name or password is wrong")
    if hasher(settings).check_needs_rehash(account.password):
        account.password = hasher(settings).hash(password)
    db.execute(delete(Attempt).where(Attempt.name == name.lower(), Attempt.address == place))
    if browser is None or mark is None:
        mark = new_mark(settings, account)
    return open_session(db, settings, account), mark


def new_mark(settings: Settings, account: Account) -> str:
    """For a browser from which this account was logged in to."""
    return sign(settings, BROWSER, f"{account.id}-{secrets.token_urlsafe(24)}")


def network(address: str) -> str:
    """What one visitor can change by itself counts as one address: of IPv6, the last 64 bits."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


def attempt(db: Session, name: str, address: str) -> Attempt:
    """Count one; the name TOKEN stands for those with a token."""
    tried = Attempt(name=name.lower(), address=address)
    db.add(tried)
    db.commit()
    return tried


def _fits(settings: Settings, known: str, password: str) -> bool:
    try:
        return hasher(settings).verify(known, password[:LONGEST_PASSWORD])
    except (VerificationError, InvalidHashError):
        return False


def open_session(db: Session, settings: Settings, account: Account) -> str:
    """A new session's cookie; old sessions that ran out go."""
    now, token = time.time(), sign(settings, SESSION, new_token())
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
    limit_attempts(db, settings, account.name, OWN, alone=True)
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


def limit_attempts(
    db: Session, settings: Settings, name: str, address: str, beside: int = 0, alone: bool = False
) -> None:
    """Few failures of one name from one address, more of an address as a whole. Not of a name as a
    whole: a stranger could lock its owner out. beside: attempts that are counted already and not
    yet judged. alone: the address is no address that others share."""
    now, wait, tries = time.time(), settings.wait, settings.tries
    db.execute(delete(Attempt).where(Attempt.time < now - wait))
    db.commit()
    named, there = Attempt.name == name.lower(), Attempt.address == address
    rules = [(named & there, tries), (there, 10 * tries)]
    for rule, most in rules[:1] if alone or name == TOKEN else rules:
        number, first = db.execute(select(func.count(), func.min(Attempt.time)).where(rule)).one()
        if number >= most + beside:
            raise RateLimited(first + wait - now)


def reset_password(db: Session, settings: Settings, name: str) -> str:
    """A new password for an account, from the machine itself: sessions end, nobody is held back
    any more. The caller commits."""
    account = db.scalar(select(Account).where(func.lower(Account.name) == name.lower()))
    if account is None:
        names = ", ".join(db.scalars(select(Account.name).order_by(Account.id).limit(10)))
        raise Refused(f"there is no account '{name}'; there are: {names or 'none yet'}")
    password = secrets.token_urlsafe(12)
    account.password = hasher(settings).hash(password)
    db.execute(delete(Login).where(Login.account_id == account.id))
    db.execute(delete(Attempt).where(Attempt.name == account.name.lower()))
    who, where = "somebody at the machine", "this machine"
    db.add(Event(who=who, address=where, action="password reset", detail=account.name))
    return password


_NOBODY: dict[bool, str] = {}


def _nobody(settings: Settings) -> str:
    """A hash that no password fits, made once."""
    if settings.cheap not in _NOBODY:
        _NOBODY[settings.cheap] = hasher(settings).hash(secrets.token_hex(32))
    return _NOBODY[settings.cheap]
