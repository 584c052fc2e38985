"""The run of a plan at the coordinator of real sites: the program of a simulation, over FLARE."""

from __future__ import annotations

import io
import re
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from cupola.analysis.checkpoint import json_line
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of, find_kind
from cupola.analysis.plan_file import load
from cupola.analysis.protocol import Analysis
from cupola.analysis.run_folder import contents, held_plan
from cupola.analysis.run_progress import Progress
from cupola.analysis.session import run
from cupola.base.chain import read_result, sealed_json
from cupola.base.files import write_atomically
from cupola.engines.flare.engine import Carry, FlareSites, masked
from cupola.engines.flare.jobs import Job
from cupola.errors import CupolaError, FederationError, PlanError
from cupola.federation.federation import Federation
from cupola.federation.ledger import Ledger
from cupola.federation.receipts import Receipts
from cupola.federation.site import Host
from cupola.secure.roster import Roster
from cupola.secure.secure_aggregation import SecureSums
from cupola.site.proposal import Proposal, read_proposal

#: What sites get at the end, before their analysis' own files.
SHARED = ("plan.toml", "history.jsonl", "result.json")
Tell = Callable[[dict[str, Any]], None]  # how far a run is
SETTINGS = "cupola-coordinator.toml"  # of a coordinator that runs its users' own code
_LARGEST = 1 << 32
_UNREADABLE = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError)  # or under a password
_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")


@dataclass(frozen=True)
class RealSites:
    """The sites of a job. own: the coordinator's folder."""

    job: Job
    carry: Carry
    own: Path
    real: bool = True

    def host(self, analysis: Analysis[Any]) -> Host:
        return analysis.known_host(self.job.sites, lambda given: public(self.own, given))

    def federation(
        self, analysis: Analysis[Any], host: Host, ledger: Ledger, folder: Path
    ) -> Federation:
        """Sites that follow the program are told every total, so that they can believe it."""
        del host
        plan, everybody = analysis.plan, len(self.job.sites)
        needed = (analysis.minimum or everybody) if plan.sum.masked or analysis.replayable else 1
        reach = _reach(self.job, self.carry, plan, needed, ledger, folder)
        if not analysis.replayable:
            return reach
        from cupola.secure.open_sums import Open
        from cupola.secure.replayed_totals import Witnessed

        if not isinstance(reach, SecureSums):
            assert self.job.roster is not None
            reach = Open(reach, Roster.from_json(self.job.roster))
        return Witnessed(reach)

    def explained(self, host: Host | None, error: Exception) -> Exception:
        """What the coordinator is told: codes. The rest is in the sites' own logs."""
        del host
        if not isinstance(error, FederationError):
            return error
        text = str(error)
        for number, name in enumerate(self.job.sites):
            text = text.replace(f"site {number}: ", f"{name}: ")
        return FederationError(text)

    def keep_logs(self, host: Host, folder: Path) -> None:
        """They are the sites' own."""


def _reach(
    job: Job, carry: Carry, plan: PlanHeader, needed: int, ledger: Ledger, folder: Path
) -> Federation:
    """A job's sites, through masked sums if its plan wants them. Receipts are kept in the run's
    folder: a party that was restored from an old copy is noticed."""
    seen = Receipts(folder / "receipts.json")
    engine = FlareSites(
        carry, job.sites, quorum=plan.engine.quorum, timeout=plan.engine.timeout, needed=needed,
        ledger=ledger, receipts=seen,
    )  # fmt: skip
    if not plan.sum.masked:
        return engine
    third = None
    if job.compensator is not None:
        timeout = plan.engine.timeout
        third = FlareSites(carry, [job.compensator], timeout=timeout, receipts=seen)
    assert job.roster is not None
    return masked(engine, third, job.roster)


def carry_out(job: Job, carry: Carry, own: Path, tell: Tell) -> str:
    """Run a job's plan in the coordinator's folder, or go on with it there; how it ended."""
    plan, folder = checked(job, allowed_modules(own)), run_folder(own, job)

    waits = not analysis_of(plan).minimum  # for all sites

    def progress(now: Progress) -> None:
        left = now.seconds_left if isfinite(now.seconds_left) else None
        tell({**asdict(now), "folder": None, "seconds_left": left, "waits": waits})

    sites = RealSites(job, carry, own)
    return run(plan, folder, resume=True, progress=progress, sites=sites).status


def run_folder(own: Path, job: Job) -> Path:
    """Where the coordinator keeps the run of a study."""
    return own / "runs" / job.study


def own_run(own: Path, job: Job) -> Path | None:
    """The run folder of a job if it holds the run of this job's plan: who hands in something else
    under a study's name, or under a name that leads elsewhere, gets nothing of it."""
    try:
        plan, folder = checked(job, allowed_modules(own)), run_folder(own, job)
        held = held_plan(folder, elsewhere=True)
    except (CupolaError, OSError):
        return None
    same = held.kind == plan.kind and Proposal(held, "").digest == Proposal(plan, "").digest
    return folder if same else None


def checked(job: Job, modules: Iterable[str] | None = None) -> PlanHeader:
    """A job's plan, if real sites can run it. modules: those that it may name code of, at a
    coordinator, who has not written it; None: any."""
    plan: PlanHeader = (
        load(job.plan + "\n", elsewhere=True)
        if modules is None
        else read_proposal(job.plan, modules).plan
    )
    if not _STUDY.fullmatch(job.study):
        raise PlanError(f"a study's name has letters, digits, '.', '-' and '_': '{job.study}'")
    if plan.many:
        raise PlanError(
            "a plan with seeds, a grid or several traits stands for several runs: submit one of "
            "them (--set trait.column=NAME)"
        )
    analysis = analysis_of(plan)
    analysis.require_real()
    if plan.sum.masked and job.roster is None:
        raise PlanError("sum.masked: masked sums need the roster that the sites agreed on")
    if analysis.replayable and job.roster is None:
        raise PlanError("sites check what they are told: such a plan needs the roster of its sites")
    if job.roster is not None:
        problems = Proposal(plan, job.plan).disagreements(Roster.from_json(job.roster))
        if problems:
            raise PlanError("\n".join(problems))
    return plan


def allowed_modules(own: Path) -> list[str]:
    """Installed modules whose code plans may name here: none, unless the coordinator says so."""
    path = own / SETTINGS
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("modules", [])
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise PlanError(f"{SETTINGS}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise PlanError(f"{SETTINGS}: modules is a list of names")
    return found


def public(own: Path, given: object) -> Path:
    """A public file that a plan names: its name, in the coordinator's folder for them."""
    return own / "public" / Path(str(given)).name


def packed(folder: Path, for_sites: bool = False) -> bytes:
    """Files of a run folder as a zip: what sites get, or all but the checkpoint, which stays."""
    found = io.BytesIO()
    plan = held_plan(folder, elsewhere=True)
    names = handed_out(plan) if for_sites else contents(plan)
    present = [name for name in names if (folder / name).is_file()]
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in present:
            if name == "result.json":
                archive.writestr(name, _result_of(folder, present))
            else:
                archive.write(folder / name, name)
    return found.getvalue()


def _result_of(folder: Path, names: list[str]) -> str:
    """result.json with the checksums of these files alone: the others stay here."""
    found = read_result(folder)
    told = found.get("checksums") or {}
    found["checksums"] = {name: told[name] for name in told if name in names}
    return sealed_json("result.json", json_line(found, indent=2))


def handed_out(plan: PlanHeader) -> tuple[str, ...]:
    """What the sites of a plan get at its end."""
    left = find_kind(plan.kind).files_of(plan.name)
    own = (name for name in left if Path(name).name == name)
    return tuple(dict.fromkeys((*SHARED, *own)))


def take_over(end: Mapping[str, Any], packed: bytes, folder: Path, plan: PlanHeader) -> None:
    """Write what a job has left into the folder of whoever handed it in; FederationError unless it
    has finished."""
    if packed:
        unpack(packed, folder, contents(plan))
    if end["state"] != "finished" or not packed:
        raise FederationError(end.get("reason") or f"the run ended as '{end['state']}'")


def unpack(data: bytes, folder: Path, allowed: Iterable[str]) -> None:
    """Write a zip's files into a folder; only these names, and no sub-folders."""
    allowed = {name for name in allowed if Path(name).name == name}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > _LARGEST:
                raise CupolaError("the results are too large")
            if any(entry.filename not in allowed for entry in entries):
                raise CupolaError("the results hold a file that does not belong there")
            folder.mkdir(parents=True, exist_ok=True)
            for entry in entries:
                write_atomically(folder / entry.filename, archive.read(entry))
    except _UNREADABLE:
        raise CupolaError("the results are not readable") from None
