"""A party's way into a study: what it is asked, its answer, who else takes part, taking part.

What was accepted is kept in the party's folder, and whatever the server says later is compared
with it: another plan, another study, weaker terms or a roster without one's own keys are refused.
Private keys are made in the folder and stay there.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import re
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cupola.analysis.preview import expected_roster
from cupola.base.files import write_atomically
from cupola.base.formatting import roughly
from cupola.errors import CupolaError, DataError, FederationError, PlanError
from cupola.secure.identity import Identity
from cupola.secure.roster import Roster, party_to_json
from cupola.site.client import Running
from cupola.site.consent import join_compensator, join_site, withdraw
from cupola.site.consent_preview import ConsentPreview, foresee
from cupola.site.dataset_settings import settings_for, write_settings
from cupola.site.open import make_keys
from cupola.site.proposal import Proposal, read_proposal
from cupola.site.server import NotYet, Server, Unknown, keep, kept, plain
from cupola.site.settings import (
    COMPENSATOR,
    KEYS,
    SITE,
    CompensatorSettings,
    SiteSettings,
    read_settings,
)

PATIENCE = 60.0  # seconds for results that are on their way, and for a server that is away
REHEARSING = 300.0  # seconds for the server to work out what a study asks
HALTED = ("failed", "stopped")  # its coordinator may resume it
Tell = Callable[[dict[str, Any]], None]
_FILES: dict[str, tuple[str, type[SiteSettings] | type[CompensatorSettings]]] = {
    "site": (SITE, SiteSettings),
    "compensator": (COMPENSATOR, CompensatorSettings),
}


class Terms(BaseModel):
    """What the server says of a study at real sites; `study` and names become file names here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    federation: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
    kind: str = Field(pattern=r"^(site|compensator)$")
    coordinator: str = Field(pattern=r"^[A-Za-z0-9.-]{1,253}:[0-9]{1,5}$")
    authority: str = Field(pattern=r"^SHA256:[0-9A-F:]{95}$")
    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    sites: int = Field(ge=1, le=1000)
    minimum: int = Field(ge=1)
    compensator: str | None = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")


@dataclass(frozen=True)
class Choice:
    """What a person decides. data: name of the data set. new: its settings, if the site's have none
    of that name. unmasked_tasks, epsilon: for settings that are made now (see SiteSettings)."""

    data: str | None = None
    new: dict[str, Any] | None = None
    unmasked_tasks: tuple[str, ...] = ()
    epsilon: float | None = None
    cores: int = 1


@dataclass
class Joining:
    """One party's part in one study. asked: what the server said when it was last asked."""

    folder: Path
    server: Server
    asked: dict[str, Any]
    mark: str
    accepted: dict[str, Any] = field(default_factory=dict)
    _looked: tuple[Choice, ConsentPreview] | None = None

    @cached_property
    def terms(self) -> Terms | None:
        """None: the server simulates all sites."""
        if self.asked.get("real") is None:
            return None
        try:
            return Terms.model_validate(self.asked["real"])
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise FederationError(f"the server's terms are not well formed: {key}") from None

    @property
    def role(self) -> str:
        return str(self.asked.get("role"))

    @property
    def site(self) -> str:
        return plain(self.asked.get("site"), 100)

    @property
    def answered(self) -> bool:
        return self.asked.get("answer") == "joined"

    @cached_property
    def proposal(self) -> Proposal:
        return self._read(_text(self.asked, "plan"))

    def _read(self, plan: str) -> Proposal:
        """A plan, read with suspicion."""
        file, kind = _FILES.get(self.role, _FILES["site"])
        made = (self.folder / file).exists()
        modules = read_settings(self.folder, kind).modules if made else ()
        return read_proposal(plan + "\n", modules)

    # What is asked

    def settings(self, choice: Choice) -> SiteSettings:
        assert self.terms is not None
        new = {} if choice.new is None or choice.data is None else {choice.data: choice.new}
        return settings_for(
            self.folder, self.terms.name, self.proposal, new, choice.unmasked_tasks, choice.epsilon
        )

    def look(self, choice: Choice) -> ConsentPreview:
        """What joining would mean, worked out here from the plan; nothing is joined."""
        assert self.terms is not None
        analysis, count = self.proposal.analysis, self.terms.sites
        names = analysis.site_names or [f"site {i}" for i in range(count)]
        minimum = min(max(2, self.terms.minimum), count)
        if analysis.plan.sum.masked and analysis.minimum == 0:  # totals are of all
            minimum = max(minimum, len(names))
        third = self.terms.compensator
        like = expected_roster(self.terms.study, names, minimum, third, analysis.changes)
        found = foresee(self.folder, self.settings(choice), self.proposal, like, choice.data)
        found.roster = "settled when all have answered"
        found.members = [("sites invited", str(self.terms.sites))]
        if third is not None:
            found.members.append(("compensator", third))
        if self.terms.minimum > len(names):
            found.objections.append("fewer sites are invited than a total needs")
        self._looked = choice, found
        return found

    def questions(self) -> list[dict[str, Any]]:
        """What a simulated study asks, as its server has rehearsed it; waits until it has."""
        late = time.monotonic() + REHEARSING
        while not isinstance(found := self.asked.get("questions"), list):
            if self.asked.get("problem") or time.monotonic() > late:
                said = plain(self.asked.get("problem") or "it is still being worked out; try later")
                raise FederationError(f"the server cannot say what the study asks: {said}")
            time.sleep(1.0)
            self.asked = self.server.get("/api/site")
        return [one for one in found if isinstance(one, dict)]

    # The answer

    def decline(self) -> None:
        self.server.post("/api/site/decline")
        keep(self.folder, self.mark, None)

    def leave(self) -> None:
        """Answer nothing more, and say so."""
        if self.terms is not None:
            with contextlib.suppress(DataError):  # it was not pinned yet
                withdraw(self.folder, self.terms.study)
        self.server.post("/api/site/leave")

    def accept(self, choice: Choice) -> None:
        """Keys and certificate first, then the answer. A simulated site names a data set of the
        server's."""
        if self.terms is None:
            self.server.post("/api/site/accept", {"data": choice.data})
            return
        if self.role == "site":
            settings = self.settings(choice)
            looked = self._looked if self._looked and self._looked[0] == choice else None
            problems = (looked[1] if looked else self.look(choice)).objections
            if problems:
                raise PlanError("\n".join(problems))
            write_settings(self.folder, settings)
        elif not (self.folder / COMPENSATOR).exists():
            text = f"name = {json.dumps(self.terms.name)}\n"
            write_atomically(self.folder / COMPENSATOR, text.encode(), private=True)
        keys = make_keys(self.folder, self.terms.name)
        self._enrol(self.terms)
        self.accepted = {
            "plan": _text(self.asked, "plan"), "data": choice.data, "study": self.terms.study,
            "minimum": self.terms.minimum, "compensator": self.terms.compensator,
        }  # fmt: skip
        facts = {"url": self.server.url, "key": self.server.key, "accepted": self.accepted}
        keep(self.folder, self.mark, facts)
        self.server.post("/api/site/accept", {"public": party_to_json(keys.public)})

    def _enrol(self, terms: Terms) -> None:
        """A start-up kit of the federation, unless the folder has one."""
        from cupola.engines.flare import launch, provision
        from cupola.engines.flare.federation_settings import Invitation, load_invitation, to_toml

        launch.check_installed()
        wanted = Invitation(
            federation=terms.federation, name=terms.name, kind=terms.kind,  # type: ignore[arg-type]
            coordinator=terms.coordinator, authority=terms.authority,
        )  # fmt: skip
        if (self.folder / provision.INVITATION).exists():
            held = load_invitation(self.folder / provision.INVITATION)
            if held != wanted:
                raise DataError(
                    f"{self.folder} belongs to the federation '{held.federation}' of "
                    f"{held.coordinator} ({held.authority}), the study to '{wanted.federation}' of "
                    f"{wanted.coordinator} ({wanted.authority}): choose another folder (--folder), "
                    "and ask for a new token"
                )
        if (self.folder / provision.KIT).is_dir():
            return
        request = self.folder / f"{terms.name}.request.zip"
        with tempfile.TemporaryDirectory() as scratch:
            if not (self.folder / provision.KEY).exists():
                invitation = Path(scratch) / "invitation.toml"
                invitation.write_text(to_toml(wanted))
                provision.request(invitation, self.folder)
            body = base64.b64encode(request.read_bytes()).decode()
            answer = self.server.post("/api/site/certificate", {"request": body})
            signed = Path(scratch) / f"{terms.name}.signed.zip"
            try:
                signed.write_bytes(base64.b64decode(_text(answer, "signed"), validate=True))
            except (binascii.Error, ValueError):
                raise FederationError("the server's certificate is not readable") from None
            provision.install(signed, self.folder)

    # Who takes part

    def agreed(self) -> tuple[Roster, str] | None:
        """The roster and the plan, if they are settled and what was accepted; None until then."""
        try:
            found = self.server.get("/api/site/roster")
        except NotYet:
            return None
        roster, plan = Roster.from_json(_text(found, "roster")), _text(found, "plan")
        self._compare(roster, plan)
        return roster, plan

    def _compare(self, roster: Roster, plan: str) -> None:
        told = self.accepted
        own = Identity.open(self.folder / KEYS).public
        third = roster.compensator
        if roster.study != told["study"]:
            raise FederationError("the roster is of another study than the one that was accepted")
        if self._but_for_sites(plan) != self._but_for_sites(told["plan"]):
            raise FederationError("the plan is not the one that was accepted")
        if roster.minimum < told["minimum"]:
            raise FederationError("totals may be of fewer sites than was accepted")
        if (third.name if third else None) != told["compensator"]:
            raise FederationError("the roster names another compensator than was accepted")
        if own not in roster.sites if self.role == "site" else own != third:
            raise FederationError("the roster does not hold this party's own keys")
        if roster.changes and not self.proposal.analysis.changes:
            raise FederationError(
                "the roster lets sites change from total to total, so that differences tell of "
                "single sites; that was not accepted"
            )

    def _but_for_sites(self, plan: str) -> dict[str, Any]:
        """A plan without who and how many take part, which is settled last. Its kind stays in it,
        so that a plan of another kind is another plan."""
        try:
            found = tomllib.loads(plan)
        except tomllib.TOMLDecodeError:
            raise FederationError("the plan cannot be read") from None
        return self._read(self.accepted["plan"]).analysis.without_sites(found)

    def pinned(self, roster: Roster) -> bool:
        """Whether this very roster was compared and pinned here before."""
        _, kind = _FILES[self.role]
        held = read_settings(self.folder, kind).studies.get(roster.study)
        return held is not None and held.roster == roster.digest.hex()

    def pin(self, roster: Roster, plan: str) -> None:
        """Consent: from here on questions of this study are answered."""
        with tempfile.TemporaryDirectory() as scratch:
            files = Path(scratch) / "plan.toml", Path(scratch) / "roster.json"
            files[0].write_text(plan, encoding="utf-8")
            files[1].write_text(roster.to_json(), encoding="utf-8")
            if self.role == "site":
                join_site(self.folder, *files, self.accepted.get("data"))
            else:
                join_compensator(self.folder, *files)
        self.server.post("/api/site/ready", {"roster": roster.digest.hex()})

    # Taking part

    @property
    def results(self) -> Path:
        if self.terms is None:
            study = self.asked.get("study")
            name = str(study.get("id")) if isinstance(study, dict) else ""
            if not re.fullmatch(r"[0-9a-f]{1,16}", name):
                raise FederationError("the server's study has no plain name")
            return self.folder / "results" / name
        from cupola.site.party_process import results_folder

        return results_folder(self.folder, self.terms.study)

    def progress(self) -> dict[str, Any]:
        found = self.server.get("/api/site/progress")
        return {key: plain(v) if isinstance(v, str) else v for key, v in found.items()}

    def take_part(
        self, tell: Tell, cores: int = 1, every: float = 1.0, wait: float = 0.0
    ) -> dict[str, Any]:
        """Answer until the study is over; gives its last progress. Results are in `results`. wait:
        seconds to stay when it is stopped or has failed, in case it is resumed."""
        if self.terms is None:
            return self._follow(tell, every, None, wait)
        with Running(self.folder, self.role, cores) as client:
            return self._follow(tell, every, client, wait)

    def _follow(
        self, tell: Tell, every: float, client: Running | None, wait: float
    ) -> dict[str, Any]:
        away = halted = 0.0
        while True:
            try:
                now, away = self.progress(), 0.0
            except Unknown:
                raise FederationError("the server no longer knows this site's key: the study was "
                                      "deleted, or the site has left it") from None  # fmt: skip
            except FederationError:
                away = away or time.monotonic()
                if time.monotonic() - away > PATIENCE:
                    raise
                now = {"status": "unreachable"}
            tell(now)
            if now["status"] == "finished":
                break
            if now["status"] != "unreachable":
                halted = (halted or time.monotonic()) if now["status"] in HALTED else 0.0
            if halted and not (now.get("resumable", True) and time.monotonic() < halted + wait):
                break
            if client is not None:
                client.look()
            time.sleep(every)
        if now["status"] == "finished" and self.role == "site":
            self._collect([str(name) for name in now.get("files") or []])
        return now

    def _collect(self, names: list[str]) -> None:
        """Results that FLARE has not brought, by the server's list; no pages, whose scripts would
        run on this machine."""
        for name in names:
            if not name.endswith((".html", ".htm", ".svg")) and not (self.results / name).exists():
                self.server.fetch(name, self.results)


def progress_text(now: dict[str, Any]) -> str:
    """How far a study is, in a line."""
    text = str(now["status"])
    if text in HALTED:
        text += f": {now.get('reason') or 'no reason given'}"
        return text + ("; waiting for it to be resumed" if now.get("resumable") else "")
    if now.get("waiting"):
        return f"{text}: waiting for {', '.join(map(str, now['waiting']))}"
    if not now.get("of"):
        return text
    left = f", about {roughly(now['left'])} left" if now.get("left") else ""
    return f"{text}: {now.get('phase')}, {now['done']:,g} of {now['of']:,g}{left}"


def begin(folder: Path, url: str, token: str, role: str) -> Joining:
    """Use a token, or go on where its use was broken off: what it was exchanged for is kept in the
    folder."""
    server = Server(url)
    mark = hashlib.sha256(f"{server.url}\n{token}".encode()).hexdigest()
    held = kept(folder).get(mark)
    if held is None:
        joined = server.post("/api/join", {"token": token})
        server.key = _text(joined, "key")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = {"url": server.url, "key": server.key, "accepted": {}}
        keep(folder, mark, held)
    server.key = str(held["key"])
    found = Joining(folder, server, server.get("/api/site"), mark, dict(held["accepted"]))
    if found.role != role:
        wanted = "compensator" if role == "site" else "site"
        raise PlanError(f"this token is for a {wanted}: use `cupola {wanted} join`")
    if found.answered and found.terms is not None and not found.accepted:
        raise CupolaError("the server says that this was answered, but not from this folder")
    return found


def tell_left(folder: Path, study: str) -> bool:
    """Tell the server that this party has withdrawn; False if it is not reached, or of no server's
    study. What matters is what the folder says."""
    for held in kept(folder).values():
        if held.get("accepted", {}).get("study") == study:
            with contextlib.suppress(CupolaError):
                Server(str(held["url"]), str(held["key"])).post("/api/site/leave")
                return True
    return False


def _text(found: dict[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str):
        raise FederationError("the server does not answer as Cupola's web application does")
    return value
