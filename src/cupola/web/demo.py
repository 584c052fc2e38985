"""What a first visitor sees: an account, and a study of each kind that runs by itself."""

from __future__ import annotations

import secrets
import tomllib
from importlib.resources import files
from pathlib import Path

from sqlalchemy import select

from cupola.association.example_cohorts import COHORTS, simulated_cohorts
from cupola.association.file_sets import file_sets
from cupola.errors import CupolaError
from cupola.web import accounts, invitations
from cupola.web.accounts import Refused
from cupola.web.kinds import analysis_named, kind_of
from cupola.web.models import COORDINATOR, Account, Study
from cupola.web.study_service import StudyService

FIRST = "coordinator"
OWN = "demonstration"


def first_account(service: StudyService) -> tuple[str, str] | None:
    """(name, password) of the first coordinator, if there was no account yet."""
    if service.db.scalar(select(Account.id).limit(1)) is not None:
        return None
    password = secrets.token_urlsafe(12)
    accounts.create(service.db, service.settings, FIRST, password, COORDINATOR, manager=True)
    service.db.commit()
    return FIRST, password


def demonstrations(service: StudyService) -> list[str]:
    """Studies of every kind, of the first account, that start at once; what was left out, and why.
    The association study is about people who do not exist: where the folder of data holds others,
    it is left out."""
    owner = service.db.scalar(select(Account).order_by(Account.id).limit(1))
    assert owner is not None
    told = []
    for plan in sorted((p for p in (files("cupola.web") / "plans").iterdir()), key=str):
        given = tomllib.loads(plan.read_text("utf-8"))
        kind = kind_of(given)
        try:
            chosen = analysis_named(kind).unchosen is not None
            sites = _simulated(service.settings.data) if chosen else []
            study = service.create(owner, kind, given)
            if sites:
                play(service, owner, study, sites)
            service.start(study)
            service.db.commit()
        except (CupolaError, OSError) as error:
            service.db.rollback()
            told.append(f"The demonstration of {kind} was left out: {error}")
    return told


def _simulated(folder: Path | None) -> list[str]:
    """The demonstration's data sets, made unless they are there."""
    names = [f"{OWN}/{name}" for name in COHORTS]
    if folder is not None and not any(folder.rglob("*.bed")):
        simulated_cohorts(folder / OWN)
    if not set(names) <= set(file_sets(folder)):
        raise Refused("the folder of data holds files of your own")
    return names


def play(service: StudyService, owner: Account, study: Study, chosen: list[str]) -> None:
    """Let data sets of this machine take part as sites, without a token passing through hands."""
    names = [name.rsplit("/", 1)[-1][:60] for name in chosen]
    for (_, token), data in zip(invitations.invite(study, names), chosen):
        service.db.flush()
        taken, _ = invitations.take(service.db, service.settings, token, owner)
        invitations.accept(service.settings, taken, data)
    service.db.flush()
