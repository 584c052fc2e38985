"""Inviting sites: a token for each, shown once, kept as a hash, and useless after its use."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from cupola.web.accounts import Refused, digest, new_token
from cupola.web.models import (
    ASKED,
    DECLINED,
    DRAFT,
    FINISHED,
    INVITING,
    JOINED,
    LEFT,
    OPEN,
    QUEUED,
    RUNNING,
    SITE,
    Account,
    Invitation,
    Study,
)
from cupola.web.organiser import Organiser, has_own_data, parties, take_keys
from cupola.web.plans import parse
from cupola.web.settings import Settings
from cupola.web.signed_tokens import KEY, sign

MOST = 200
TOKEN_LASTS, KEY_LASTS = 30 * 24 * 3600.0, 90 * 24 * 3600.0  # seconds; after the study's end
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,60}")


def invite(
    study: Study, sites: Sequence[str], organiser: Organiser | None = None
) -> list[tuple[str, str]]:
    """(site, token) for each new site; the caller commits and shows them. organiser: its sites
    are machines of their own."""
    if study.status not in (DRAFT, INVITING):
        raise Refused("sites can be invited before a study starts; repeat it to invite others")
    if not study.analysis.takes_sites(parse(study.plan), organiser is not None):
        raise Refused("this plan's data say who the sites are: it can only be simulated as it is")
    known = {i.site.lower() for i in study.invitations}
    names = [name.strip() for name in sites if name.strip()]
    if not names:
        raise Refused("name at least one site")
    if len(names) + len(known) > MOST:
        raise Refused(f"{MOST} sites at most can be invited")
    roles = dict.fromkeys(names, SITE)
    if study.invitations and study.real != (organiser is not None):
        raise Refused("a study's sites are all real, or all simulated")
    if organiser is None and has_own_data(study):
        raise Refused("the data are elsewhere: invite real sites, which hold them")
    if organiser is not None:
        roles = parties(study, organiser, names)
        new = [name for name in roles if not organiser.has_signed(name)]
        if new and not study.owner.manager:
            raise Refused(
                f"'{new[0]}' has no certificate yet: whoever uses its first token becomes it on "
                "the network, so that only the first coordinator may invite it"
            )
        study.real = True
    made = []
    for name, role in roles.items():
        if not _SITE.fullmatch(name):
            raise Refused(f"'{name[:70]}': a site's name has letters, digits, spaces and . _ -")
        if name.lower() in known:
            raise Refused(f"site '{name}' is invited already")
        known.add(name.lower())
        token = new_token()
        study.invitations.append(Invitation(site=name, role=role, token=digest(token), status=OPEN))
        made.append((name, token))
    study.status = INVITING
    return made


def renew(invitation: Invitation) -> str:
    """Another token in the place of one that was lost, declined, or whose site left."""
    if invitation.study.status in (QUEUED, RUNNING):
        raise Refused("the study is running")
    if invitation.status == JOINED or (invitation.status == ASKED and not invitation.study.real):
        raise Refused(f"site '{invitation.site}' has used its token")
    token = new_token()
    invitation.token, invitation.key, invitation.status = digest(token), None, OPEN
    invitation.account_id, invitation.data, invitation.changed = None, None, time.time()
    invitation.public, invitation.ready = None, False
    return token


def _unused(token: str) -> Any:
    """Those with this token; one that was given out long ago is no longer good."""
    fresh = Invitation.changed > time.time() - TOKEN_LASTS
    return (Invitation.token == digest(token)) & fresh


def find(db: Session, token: str) -> Invitation | None:
    """The invitation of an unused token."""
    return db.scalar(select(Invitation).where(_unused(token)))


def take(
    db: Session, settings: Settings, token: str, account: Account | None
) -> tuple[Invitation, str]:
    """Use a token up: the invitation, and the key of a site program. Of two who try at the same
    time one succeeds."""
    key = sign(settings, KEY, new_token())
    number = db.scalar(select(Invitation.id).where(_unused(token)))
    used = db.execute(
        update(Invitation)
        .where(_unused(token))
        .values(
            token=None,
            key=digest(key),
            status=ASKED,
            account_id=None if account is None else account.id,
            changed=time.time(),
        )
        .execution_options(synchronize_session=False)
    )
    if number is None or used.rowcount != 1:  # type: ignore[attr-defined]
        raise Refused("this token is wrong, or was used already")
    found = db.get(Invitation, number, populate_existing=True)
    assert found is not None
    return found, key


def by_key(db: Session, key: str) -> Invitation | None:
    """The invitation of a site program's key, which ends some time after its study."""
    found = db.scalar(select(Invitation).where(Invitation.key == digest(key)))
    if found is None or found.study.status != FINISHED:
        return found
    ended = max((run.ended or 0.0 for run in found.study.runs), default=0.0)
    return found if ended > time.time() - KEY_LASTS else None


def accept(
    settings: Settings,
    invitation: Invitation,
    data: str | None,
    public: dict[str, Any] | None = None,
) -> None:
    """The site takes part, with this data set; the caller commits. public: keys of a real one,
    whose data are its own affair."""
    if invitation.status != ASKED:
        raise Refused(f"site '{invitation.site}' has answered already")
    if invitation.study.status not in (DRAFT, INVITING):
        raise Refused("the study has begun without this site")
    if invitation.study.real:
        take_keys(invitation, public)
    elif invitation.study.analysis.unchosen is not None:
        if data not in invitation.study.analysis.data_sets(settings.data):
            raise Refused("choose one of the data sets of this machine")
        taken = {i.data for i in invitation.study.invitations if i.status == JOINED}
        if data in taken:
            raise Refused("another site of this study brings that data set")
        invitation.data = data
    invitation.status, invitation.changed = JOINED, time.time()


def decline(invitation: Invitation) -> None:
    if invitation.status != ASKED:
        raise Refused(f"site '{invitation.site}' has answered already")
    invitation.status, invitation.key, invitation.changed = DECLINED, None, time.time()


def leave(invitation: Invitation) -> None:
    """The site no longer takes part; what it told before cannot be taken back."""
    if invitation.status != JOINED:
        raise Refused(f"site '{invitation.site}' does not take part")
    invitation.status, invitation.key, invitation.changed = LEFT, None, time.time()


def joined(study: Study) -> list[Invitation]:
    """Sites that take part; the compensator is none."""
    return [i for i in study.invitations if i.status == JOINED and i.role == SITE]


def awaited(study: Study) -> list[Invitation]:
    """Parties that have not answered yet."""
    return [i for i in study.invitations if i.status in (OPEN, ASKED)]
