"""Joining a study and leaving it: what a party has agreed to, and the gate that holds it to that.

A party's folder:

    cupola-site.toml        its settings, with an entry for every study it joined
    identity.json           its keys
    revoked/                keys that their owners have withdrawn: its own, and others'
    spent/                  what each data set has spent, over all studies
    studies/NAME/           plan.toml, roster.json, answers/, ledger.jsonl, withdrawn, log.txt,
                            go-on/ (agreements to go on without a lost site) ...
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic

from cupola.analysis.protocol import Analysis, OwnSite
from cupola.base.chain import damaged
from cupola.base.files import write_atomically
from cupola.errors import CupolaError, DataError, FederationError, PlanError
from cupola.federation.message import Declined, Question
from cupola.secure import lost_sites
from cupola.secure.identity import Identity
from cupola.secure.revocation import is_revoked
from cupola.secure.roster import Roster
from cupola.site.log import own_log
from cupola.site.proposal import FOLLOWING, PROTOCOLS, Proposal, matches, read_proposal
from cupola.site.settings import (
    COMPENSATOR,
    KEYS,
    SITE,
    CompensatorSettings,
    Consent,
    Kind,
    PartySettings,
    SiteSettings,
    read_settings,
)

WITHDRAWN = "withdrawn"
SETTLING = ("settle", "unmask", "settled")
_REJOIN = "restore it from a copy, or join again with the same plan and roster"


@dataclass(frozen=True)
class Joined(Generic[Kind]):
    """A study that a party has joined, as its folder holds it now. Made anew to look again."""

    folder: Path
    study: str
    settings: Kind

    @property
    def place(self) -> Path:
        return study_folder(self.folder, self.study)

    @cached_property
    def consent(self) -> Consent:
        if self.study not in self.settings.studies:
            raise Declined("this study was not joined here")
        return self.settings.studies[self.study]

    @cached_property
    def roster(self) -> Roster:
        return _pinned(self.place / "roster.json", self.consent.roster)

    @cached_property
    def proposal(self) -> Proposal:
        path = self.place / "plan.toml"
        try:
            proposal = read_proposal(path, self.settings.modules)
        except (PlanError, DataError, UnicodeDecodeError, OSError) as error:
            raise damaged(path, _first_line(error), _REJOIN) from None
        if proposal.digest != self.consent.plan:
            raise damaged(path, "it is not the plan that was joined", _REJOIN)
        return proposal

    @cached_property
    def identity(self) -> Identity:
        return Identity.open(self.folder / KEYS)

    def gone(self) -> frozenset[str]:
        """Sites that the others go on without, as far as is known here."""
        return lost_sites.gone(lost_sites.kept(self.place, self.roster), self.roster)

    def refuse_if_over(self) -> None:
        """Declined unless the study was joined; or once the party has withdrawn, or a key of the
        roster was revoked."""
        _ = self.consent
        if (self.place / WITHDRAWN).exists():
            raise Declined("this site has withdrawn from the study")
        roster = self.roster
        parties = (*roster.sites, *([roster.compensator] if roster.compensator else []))
        for party in parties:
            if is_revoked(self.folder, party):
                raise Declined(f"a key of the study was revoked: {party.name}")


def look(folder: Path, study: str, kind: type[Kind]) -> Joined[Kind]:
    """What this party says of a study now."""
    return Joined(folder, study, read_settings(folder, kind))


class SiteGate:
    """Refuses whatever the site's settings, as they are now, do not allow."""

    def __init__(self, folder: Path, study: str) -> None:
        self.folder, self.study = folder, study
        self._held: tuple[bytes, Joined[SiteSettings]] | None = None
        self._last: Joined[SiteSettings] | None = None

    def joined(self) -> Joined[SiteSettings]:
        """What the site says now; read again when its settings have changed."""
        now = (self.folder / SITE).read_bytes()
        if self._held is None or self._held[0] != now:
            self._held = now, look(self.folder, self.study, SiteSettings)
        return self._held[1]

    def __call__(self, question: Question) -> bool:
        """Whether the settings have changed since the last question that passed."""
        joined = self.joined()
        self._check(question, joined)
        changed, self._last = self._last not in (None, joined), joined
        return changed

    def _check(self, question: Question, joined: Joined[SiteSettings]) -> None:
        joined.refuse_if_over()
        settings, proposal = joined.settings, joined.proposal
        analysis = proposal.analysis
        if joined.roster.minimum < settings.minimum:
            raise Declined("the study's minimum of sites is below this site's")
        weaker = analysis.weaker_limits(settings)
        if weaker:
            raise Declined(weaker[0])
        if not analysis.may_ask(question.step):
            raise Declined("the plan has no such step")
        if matches(question.task, FOLLOWING):
            if not analysis.replayable:
                raise Declined("this site does not follow this study")
        elif question.task == "open" or not matches(question.task, PROTOCOLS):
            inner = question
            if question.task == "open":
                from cupola.secure.wrapped_question import inner_question

                inner = inner_question(question)
            self._allow(inner, settings, analysis)
            if not matches(inner.task, settings.unmasked_tasks):
                raise Declined("this site answers this in masked sums only")
        elif not matches(question.task, proposal.protocol):
            # Two protocols could tell the totals of two cohorts.
            raise Declined("the plan's sums are made by another protocol")
        elif question.task in ("masked", "pairwise masked"):
            from cupola.secure.wrapped_question import inner_question

            self._allow(inner_question(question), settings, analysis)

    def _allow(self, question: Question, settings: SiteSettings, analysis: Analysis[Any]) -> None:
        if not matches(question.task, settings.tasks) or not analysis.asks(question.task):
            raise Declined("this site does not run this task")
        if not analysis.replayable:  # else the site's own copy says what is asked next
            reason = analysis.allows(question)
            if reason is not None:
                raise Declined(reason)


def study_folder(folder: Path, study: str) -> Path:
    """Where a party keeps what belongs to a study; its name made safe for a file system."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", study).strip(".-")[:60]
    # The hash always: no study can be named so that it gets another one's folder.
    return folder / "studies" / f"{plain}-{sha256(study.encode()).hexdigest()[:16]}"


def own_folder(place: Path) -> None:
    """Make a study's folder, for its owner alone: it holds answers as they are before masking."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)  # also if something else made it


def join_site(folder: Path, plan: Path, roster: Path, data: str | None = None) -> Consent:
    """Consent to a study: pin its plan and roster, after checking that the site can take part."""
    settings = read_settings(folder, SiteSettings)
    proposal = read_proposal(plan, settings.modules)
    pinned = _read_roster(roster)
    if against := objections(settings, proposal, pinned, data, folder):
        raise PlanError("\n".join(against))
    own = Identity.open(folder / KEYS)
    if own.public not in pinned.sites:
        raise DataError("this site's keys are not in the roster; send the others your public keys")
    consent = Consent(
        plan=proposal.digest, roster=pinned.digest.hex(), data=chosen_data(settings, proposal, data)
    )
    _pin(folder, settings, pinned, consent, proposal.text)
    return consent


def join_compensator(folder: Path, plan: Path, roster: Path) -> Consent:
    """The compensator's consent; of the plan it keeps the hash, for people to compare."""
    settings = read_settings(folder, CompensatorSettings)
    pinned = _read_roster(roster)
    if pinned.compensator != Identity.open(folder / KEYS).public:
        raise DataError("the roster names another compensator, or other keys of it")
    proposal = read_proposal(plan, settings.modules)
    problems = proposal.disagreements(pinned)
    if problems:
        raise PlanError("\n".join(problems))
    consent = Consent(plan=proposal.digest, roster=pinned.digest.hex())
    _pin(folder, settings, pinned, consent, proposal.text)
    return consent


def objections(
    settings: SiteSettings,
    proposal: Proposal,
    roster: Roster,
    data: str | None = None,
    folder: Path = Path(),
) -> list[str]:
    """Why this site cannot take part as its settings are, a line each. folder: what names of files
    in its settings are relative to."""
    found, analysis = [], proposal.analysis
    for task in analysis.tasks:
        if not matches(task, settings.tasks) and task not in settings.tasks:
            found.append(f"the study runs '{task}', which is not in tasks")
    for task in proposal.unmasked_tasks:
        if not matches(task, settings.unmasked_tasks) and task not in settings.unmasked_tasks:
            found.append(
                f"the study asks for '{task}' without masks, which is not in unmasked_tasks"
            )
    if not analysis.tasks:
        found.append(f"kind = '{analysis.kind}' does not say which tasks sites run")
    if roster.minimum < settings.minimum:
        found.append(
            f"totals may be of {roster.minimum} sites; this site wants at least {settings.minimum}"
        )
    found += proposal.disagreements(roster)
    found += analysis.weaker_limits(settings)
    found += analysis.objections(settings)
    try:
        chosen = chosen_data(settings, proposal, data)
        site = looking(folder, settings, roster, chosen)
        return [*found, *analysis.data_problems(site)]
    except DataError as error:
        return [*found, str(error)]


def chosen_data(settings: SiteSettings, proposal: Proposal, data: str | None) -> str:
    """Which data set takes part: the one that was named, or the one the plan names, or the only
    one of its kind."""
    analysis = proposal.analysis
    wanted = data or analysis.data_name
    able = [name for name, own in settings.data.items() if analysis.fits(own)]
    if wanted is None and len(able) == 1:
        wanted = able[0]
    if wanted is None or wanted not in settings.data:
        known = ", ".join(able) or "none"
        what = analysis.data_noun
        if wanted is None:
            raise DataError(f"say which {what} takes part (--data); this site has: {known}")
        raise DataError(f"this site has no {what} '{wanted}'; it has: {known}")
    return wanted


def looking(folder: Path, settings: SiteSettings, roster: Roster, data: str) -> OwnSite:
    """The site before it takes part: only to look at what it would be asked."""
    return OwnSite(
        0,
        len(roster.sites),
        settings.data[data],
        folder,
        study_folder(folder, roster.study),
        settings,
        dataset=data,
        study=roster.study,
        book=spent_file(folder, data),
        looking=True,
    )


def own_site(joined: Joined[SiteSettings]) -> OwnSite:
    """The site in a study that it has joined."""
    data = joined.consent.data
    if data is None or data not in joined.settings.data:
        raise DataError(f"the site's settings name no data set '{data}'")
    identity, roster = joined.identity, joined.roster
    if identity.public not in roster.sites:
        raise FederationError("this site's keys are not in the roster")
    number = roster.sites.index(identity.public)
    site = looking(joined.folder, joined.settings, roster, data)
    return replace(site, number=number, looking=False, log=own_log(site.place))


def spent_file(folder: Path, data: str) -> Path:
    """Where the spending of a data set is kept."""
    return folder / "spent" / f"{study_folder(folder, data).name}.jsonl"


def withdraw(folder: Path, study: str) -> None:
    """Answer nothing more in a study. What was told stays told."""
    place = study_folder(folder, study)
    if not place.is_dir():
        raise DataError(f"'{study}' was not joined here")
    write_atomically(place / WITHDRAWN, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def agree_to_go_on(folder: Path, study: str, lost: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Sign that a study may go on without sites that are lost, and believe it: the agreement to
    hand out, and who has yet to sign."""
    joined = look(folder, study, SiteSettings)
    analysis = joined.proposal.analysis
    if analysis.replayable:
        raise PlanError(
            f"every total of this study is of all {analysis.noun}s, from the first to the last: "
            "without one it is a new study, with a new name and roster, that begins anew"
        )
    text = lost_sites.go_on(joined.identity, joined.roster, lost)
    return text, believe(joined, text)[1]


def believe(joined: Joined[Kind], text: str | bytes) -> tuple[frozenset[str], tuple[str, ...]]:
    """Believe an agreement to go on: without whom, and who has yet to sign."""
    roster = joined.roster
    lost, _ = lost_sites.keep(joined.place, text, roster)
    return lost, lost_sites.awaited(lost_sites.kept(joined.place, roster), roster, lost)


def nearly_the_same(settings: PartySettings, folder: Path, roster: Roster) -> list[tuple[str, str]]:
    """Earlier studies here whose sites differ from these by fewer than the minimum: no memory spans
    two studies, and their totals can be subtracted."""
    found, names = [], {party.sign: party.name for party in roster.sites}
    for study, consent in settings.studies.items():
        if study == roster.study:
            continue
        try:
            before = _pinned(study_folder(folder, study) / "roster.json", consent.roster)
        except (DataError, FederationError):
            continue  # its folder was removed
        other = {party.sign: party.name for party in before.sites}
        differ = {(names | other)[key] for key in names.keys() ^ other.keys()}
        if len(differ) < roster.minimum and names.keys() & other.keys():
            whom = f"of {', '.join(sorted(differ))}" if differ else "of what has changed since"
            found.append(
                (
                    "coordinator",
                    f"with what '{study}' told, which had nearly the same sites: differences of "
                    f"the two studies' totals can tell {whom}",
                )
            )
    return found


def nearly_before(folder: Path, roster: Path) -> list[tuple[str, str]]:
    """The same for a compensator."""
    settings = read_settings(folder, CompensatorSettings)
    return nearly_the_same(settings, folder, _read_roster(roster))


def _read_roster(path: Path) -> Roster:
    try:
        return Roster.from_json(path.read_bytes())
    except OSError:
        raise DataError(f"{path} cannot be read") from None


def _pinned(path: Path, digest: str) -> Roster:
    try:
        roster = _read_roster(path)
    except (CupolaError, UnicodeDecodeError) as error:
        raise damaged(path, _first_line(error), _REJOIN) from None
    if roster.digest.hex() != digest:
        raise damaged(path, "it is not the roster that was joined", _REJOIN)
    return roster


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _pin(
    folder: Path, settings: PartySettings, roster: Roster, consent: Consent, plan: str
) -> None:
    study, place = roster.study, study_folder(folder, roster.study)
    before = settings.studies.get(study)
    if before is not None and before != consent:
        raise PlanError(
            f"study '{study}' was joined with another plan, roster or data set; a changed study "
            "needs a new name in its roster"
        )
    if (place / WITHDRAWN).exists():
        raise PlanError(f"this party has withdrawn from '{study}'; a new study needs a new name")
    own_folder(place)
    write_atomically(place / "roster.json", roster.to_json())
    write_atomically(place / "plan.toml", plan)
    if before is None:
        path = folder / (SITE if isinstance(settings, SiteSettings) else COMPENSATOR)
        data = "" if consent.data is None else f"data = {_quoted(consent.data)}\n"
        entry = (
            f"\n[studies.{_quoted(study)}]\n"
            f'plan = "{consent.plan}"\nroster = "{consent.roster}"\n{data}'
        )
        path.chmod(0o600)  # it can hold the salt of people's fingerprints
        write_atomically(path, [path.read_bytes(), entry.encode()])


def _quoted(text: str) -> str:
    """As TOML writes it; JSON's escapes of rare letters are no TOML."""
    return json.dumps(text, ensure_ascii=False)
