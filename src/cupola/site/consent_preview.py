"""What joining a study would mean for a site, before it consents (`cupola site preview`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cupola.analysis.preview import Preview
from cupola.secure.roster import Roster
from cupola.site.consent import chosen_data, looking, nearly_the_same, objections
from cupola.site.proposal import Proposal, read_proposal
from cupola.site.settings import SiteSettings, read_settings


@dataclass
class ConsentPreview(Preview):
    """What is asked, of whom it is known, and why this site cannot take part, if so. plan, roster:
    their hashes. members: of the roster, with fingerprints."""

    study: str = ""
    plan: str = ""
    roster: str = ""
    objections: list[str] = field(default_factory=list)
    members: list[tuple[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def preview(folder: Path, plan: Path, roster: Path, data: str | None = None) -> ConsentPreview:
    """What joining would mean; nothing is joined."""
    settings = read_settings(folder, SiteSettings)
    proposal = read_proposal(plan, settings.modules)
    return foresee(folder, settings, proposal, Roster.from_json(roster.read_bytes()), data)


def foresee(
    folder: Path,
    settings: SiteSettings,
    proposal: Proposal,
    pinned: Roster,
    data: str | None = None,
) -> ConsentPreview:
    """The same, for settings that need not be written yet."""
    against = objections(settings, proposal, pinned, data, folder)
    chosen = chosen_data(settings, proposal, data)
    asked = proposal.analysis.preview(looking(folder, settings, pinned, chosen), pinned)
    found = ConsentPreview(
        **vars(asked),
        study=pinned.study,
        plan=proposal.digest,
        roster=pinned.digest.hex(),
        objections=against,
        members=[(party.name, party.fingerprint) for party in pinned.sites],
    )
    found.parties += nearly_the_same(settings, folder, pinned)
    third = pinned.compensator
    if third is not None:
        found.members.append((f"{third.name} (compensator)", third.fingerprint))
    return found
