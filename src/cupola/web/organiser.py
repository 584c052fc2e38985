"""Studies at real sites: the server as organiser of a federation over NVIDIA FLARE.

It signs the certificate requests of parties whose tokens it gave out, writes down who takes part,
runs the coordinator and hands plans in. It never sees a private key of a site or a compensator.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cupola.base.files import is_held
from cupola.errors import CupolaError
from cupola.web.accounts import Refused
from cupola.web.launcher import ChildProcess, Job, hold, holder
from cupola.web.models import COMPENSATOR, JOINED, SITE, Invitation, Study
from cupola.web.plans import parse, plan_of, to_text
from cupola.web.settings import Settings

if TYPE_CHECKING:
    from cupola.engines.flare.federation_settings import FederationSettings
    from cupola.engines.flare.federation_settings import Invitation as Invited
    from cupola.secure.identity import Party
    from cupola.secure.roster import Roster

_LOG = logging.getLogger("cupola.web")
_SIGNING = threading.Lock()  # FLARE's commands talk to this process's own standard output
LARGEST = 64_000  # bytes of a request
LOCK = "coordinator.lock"


class Organiser:
    """folder: as `cupola federation init` made it. own: for the kits of the coordinator and of
    whoever hands plans in, which are this server's."""

    def __init__(self, folder: Path, own: Path) -> None:
        self.folder, self.own = folder, own

    @cached_property
    def settings(self) -> FederationSettings:
        from cupola.engines.flare.federation_settings import load_federation

        return load_federation(self.folder / "federation.toml")

    @property
    def coordinator(self) -> Path:
        return self.own / "coordinator"

    @property
    def lead(self) -> Path:
        return self.own / "lead"

    def prepare(self) -> None:
        """Make the server's own kits, once."""
        from cupola.engines.flare import launch, provision

        launch.check_installed()
        leads = [user for user, role in self.settings.users.items() if role == "lead"]
        if not leads:
            raise CupolaError(f"{self.folder}: nobody in [users] is a 'lead', who hands plans in")
        for name, folder in ((self.settings.host, self.coordinator), (leads[0], self.lead)):
            if not (folder / provision.KIT).is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
                invitation = self.folder / "invitations" / f"{name}.toml"
                asked = provision.request(invitation, folder)
                provision.install(provision.approve(asked, self.folder), folder)

    def invited(self, name: str) -> Invited:
        """What a party is told so that it can ask for its certificate."""
        from cupola.engines.flare.federation_settings import load_invitation

        return load_invitation(self.folder / "invitations" / f"{name}.toml")

    def has_signed(self, name: str) -> bool:
        """Whether this name belongs to a key already."""
        return (self.folder / "signed" / f"{name}.signed.zip").exists()

    def sign(self, name: str, request: str) -> str:
        """The certificate for this name's request, once: a second key for it is refused, so that
        who makes tokens later cannot pose as a party that is there already."""
        from cupola.engines.flare import provision

        body = _decoded(request)
        mark = self.folder / "signed" / f"{name}.request.sha256"
        signed = self.folder / "signed" / f"{name}.signed.zip"
        hashed = sha256(body).hexdigest()
        with _SIGNING, tempfile.TemporaryDirectory() as scratch:
            if signed.exists():
                if not mark.exists() or mark.read_text() != hashed:
                    raise Refused(
                        f"'{name}' has a certificate for another key; use the folder that holds it,"
                        " or ask the organiser to make room for a new one"
                    )
                return base64.b64encode(signed.read_bytes()).decode()
            path = Path(scratch) / f"{name}.request.zip"
            path.write_bytes(body)
            try:
                asked = provision.requested_name(path)
                if asked == name:  # whose key it is stands first: a crash leaves nobody locked out
                    mark.parent.mkdir(exist_ok=True)
                    mark.write_text(hashed)
                    made = provision.approve(path, self.folder)
            except CupolaError as error:
                _LOG.warning("a request of '%s' was not signed: %s", name, error)
                raise Refused(
                    "this is not a request for a certificate that can be signed"
                ) from None
            if asked != name:
                raise Refused(f"the token is for '{name}', and so must be the certificate")
            return base64.b64encode(made.read_bytes()).decode()


def organiser_of(settings: Settings) -> Organiser | None:
    """The federation that the server organises, if it was given one."""
    if settings.federation is None:
        return None
    return Organiser(settings.federation, settings.folder / "federation")


def _decoded(request: str) -> bytes:
    try:
        body = base64.b64decode(request, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("a request is sent as base64") from None
    if not 0 < len(body) <= LARGEST:
        raise Refused(f"a request has {LARGEST:,} bytes at most")
    return body


# Who takes part, and in what


def parties(study: Study, organiser: Organiser | None, names: Sequence[str]) -> dict[str, str]:
    """Name -> role of those to invite: these sites, and the compensator where the plan's sums need
    one."""
    from cupola.engines.flare.jobs import Job as FlareJob
    from cupola.secure.identity import Identity
    from cupola.site.coordinator import checked

    if organiser is None:
        raise Refused("this server has no federation: start it with --federation")
    known, third = organiser.settings.sites, organiser.settings.compensator
    for name in names:
        if name not in known:
            raise Refused(f"'{name}' is no site of the federation; it has: {', '.join(known)}")
    found = dict.fromkeys(names, SITE)
    plan = plan_of(study)
    with_third = plan.sum.masked and plan.sum.protocol == "compensator"
    if with_third:
        if third is None:
            raise Refused("masked sums need a compensator, and the federation names none")
        if all(i.role != COMPENSATOR for i in study.invitations):
            found[third] = COMPENSATOR
    try:  # refused now rather than when all have joined
        some = [*names, *(f"site-{i}" for i in range(len(names), plan.sum.minimum))]
        keys = [Identity.simulated(i, name).public for i, name in enumerate(some)]
        other = Identity.simulated(-1, third).public if third and with_third else None
        like = _roster(study, keys, other)
        checked(FlareJob.of(plan_text(study, some), like.to_json()))
    except CupolaError as error:
        raise Refused(str(error)) from None
    return found


def has_own_data(study: Study) -> bool:
    """Whether a study's data are at its sites, so that it cannot be simulated."""
    return study.analysis.needs_real_sites(parse(study.plan))


def name_of(study: Study) -> str:
    """What the study is called in its roster, in folders of sites, and over FLARE."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", study.name).strip(".-")[:60] or "study"
    return f"{plain}-{study.id}"


def plan_text(study: Study, sites: Sequence[str]) -> str:
    """The plan as these sites carry it out."""
    return to_text(study.analysis.with_sites(parse(study.plan), {name: {} for name in sites}))


def take_keys(invitation: Invitation, public: dict[str, Any] | None) -> None:
    """A party's public keys, as it answers."""
    from cupola.secure.roster import party_from_json, party_to_json

    try:
        party = party_from_json(dict(public or {}))
    except (CupolaError, ValueError, KeyError, TypeError, AttributeError):
        raise Refused("a site of its own brings its public keys") from None
    if party.name != invitation.site:
        raise Refused(f"the keys are of '{party.name}', the token is for '{invitation.site}'")
    others = [i for i in invitation.study.invitations if i.public and i.id != invitation.id]
    taken = [json.loads(i.public or "") for i in others]
    if any(party.sign.hex() == t["sign"] or party.seal.hex() == t["seal"] for t in taken):
        raise Refused("another party of this study has these keys")
    invitation.public = json.dumps(party_to_json(party))


def roster_of(study: Study) -> Roster:
    """Those who joined, in the order of their invitations."""
    from cupola.secure.roster import party_from_json

    there = [i for i in study.invitations if i.status == JOINED]
    keys = {i.role: [] for i in there} | {SITE: [], COMPENSATOR: []}  # type: ignore[var-annotated]
    for i in there:
        keys[i.role].append(party_from_json(json.loads(i.public or "{}")))
    plan = plan_of(study)
    third = keys[COMPENSATOR][0] if keys[COMPENSATOR] else None
    if plan.sum.masked and plan.sum.protocol == "compensator" and third is None:
        raise Refused("the compensator has not joined")
    try:
        return _roster(study, keys[SITE], third)
    except CupolaError as error:
        raise Refused(str(error)) from None


def _roster(study: Study, sites: Sequence[Party], third: Party | None) -> Roster:
    from cupola.secure.roster import Roster

    analysis = study.analysis(plan_of(study))
    choice = analysis.plan.sum
    every = choice.masked and not analysis.minimum  # its totals are of all sites
    minimum = max(choice.minimum, len(sites)) if every else choice.minimum
    return Roster(name_of(study), tuple(sites), third, minimum, changes=analysis.changes)


def settle(study: Study, sites: Sequence[str]) -> None:
    """Write down who takes part, if real sites can carry the plan out; the caller commits."""
    from cupola.engines.flare.jobs import Job as FlareJob
    from cupola.site.coordinator import checked

    study.roster = roster_of(study).to_json()
    try:
        checked(FlareJob.of(plan_text(study, sites), study.roster))
    except CupolaError as error:
        raise Refused(str(error)) from None
    for i in study.invitations:
        i.ready = False


def unready(study: Study) -> list[str]:
    """Parties that have not pinned the roster yet."""
    return [i.site for i in study.invitations if i.status == JOINED and not i.ready]


class FlareLauncher(ChildProcess):
    """Simulates as before; for real sites it runs their coordinator."""

    def __init__(self, organiser: Organiser) -> None:
        super().__init__()
        self.organiser = organiser

    @property
    def _lock(self) -> Path:
        return self.organiser.own / LOCK

    def coordinate(self) -> None:
        """Start the coordinator unless it runs: sites connect to it whether a study runs or not."""
        if is_held(self._lock):
            return
        self.organiser.prepare()
        folder = self.organiser.coordinator.resolve()
        line = [sys.executable, "-P", "-m", "cupola", "coordinator", "start", "-f", str(folder)]
        self.children.append(hold(line, self._lock, self.organiser.own / "coordinator.log"))

    def start(self, job: Job, folder: Path) -> None:
        if job.real:
            self.coordinate()
        super().start(job, folder)

    def close(self) -> None:
        """End the coordinator; not while a study runs."""
        number = holder(self._lock)
        if number is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGTERM)
