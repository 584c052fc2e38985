"""The run of a plan or a study at the coordinator of real sites: the program of a simulation, over
FLARE."""

from __future__ import annotations

import io
import re
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.analysis.checkpoint import json_line
from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import CONTENTS as OF_RUNS
from cupola.analysis.session import Progress, run
from cupola.base.chain import read_result, sealed_json
from cupola.base.files import write_atomically
from cupola.data import FederatedData, SiteData
from cupola.errors import CupolaError, FederationError, PlanError
from cupola.federation import Federation, Ledger
from cupola.federation.receipts import Receipts
from cupola.flare.engine import Carry, FlareSites, masked
from cupola.flare.jobs import Job
from cupola.gwas import Variants, read_variants
from cupola.gwas.plan import StudyPlan
from cupola.gwas.result_files import TABLES
from cupola.gwas.study_run import CONTENTS as OF_STUDIES
from cupola.gwas.study_run import FILE, run_study
from cupola.learn import TrainingHost, build
from cupola.learn.plan import Plan
from cupola.secure.choices import Sum
from cupola.secure.masked import Hidden
from cupola.secure.roster import Roster
from cupola.site.proposal import Proposal, load_any, read_proposal

#: What sites get at the end, in this order.
RESULTS = (
    "plan.toml", "history.jsonl", "result.json", "model.safetensors", "partition.json",
    "personal.json", "personal.safetensors", FILE, *TABLES,
)  # fmt: skip
CONTENTS = tuple(dict.fromkeys((*OF_RUNS, *OF_STUDIES)))
Tell = Callable[[dict[str, Any]], None]  # how far a run is
SETTINGS = "cupola-coordinator.toml"  # of a coordinator that runs its users' own code
_FILES = ("public", "path", "folder")  # options of data sets that name files
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

    def host(self, plan: Plan) -> TrainingHost:
        """What the coordinator knows of the data: kind, shape and classes, from a public set."""
        plan = with_public_data(plan, self.own)
        known = build.federated_data(plan)
        names = self.job.sites
        data = FederatedData(
            len(names),
            lambda _: SiteData(known.site(0).train.subset(slice(0, 0))),
            kind=known.kind,
            classes=known.classes,
            input_shape=known.input_shape,
            class_names=known.class_names,
            public=known.public,
            site_name=names.__getitem__,
            name=known.name,
            **known.token_facts,
        )
        return TrainingHost(build.problem(plan, data), data)

    def federation(
        self, plan: Plan, host: TrainingHost, ledger: Ledger, folder: Path
    ) -> Federation:
        del host
        needed = plan.sum.minimum if plan.sum.masked else 1
        facts = (plan.engine.timeout, plan.engine.quorum, needed, folder)
        return _reach(self.job, self.carry, plan.sum, ledger, *facts)


@dataclass(frozen=True)
class RealCohorts:
    """The cohorts of a job, all of whom are waited for. own: the coordinator's folder."""

    job: Job
    carry: Carry
    own: Path
    real: bool = True

    def listed(self, plan: StudyPlan) -> Variants | None:
        return None if plan.variants is None else read_variants(public(self.own, plan.variants))

    def federation(self, plan: StudyPlan, ledger: Ledger, folder: Path) -> Federation:
        from cupola.secure.following import Witnessed
        from cupola.secure.open_sums import Open

        everybody = len(self.job.sites)
        facts = (plan.timeout, 1.0, everybody, folder)
        reach = _reach(self.job, self.carry, plan.sum, ledger, *facts)
        if not isinstance(reach, Hidden):
            assert self.job.roster is not None
            reach = Open(reach, Roster.from_json(self.job.roster))
        return Witnessed(reach)

    def explained(self, error: FederationError) -> str:
        """What the coordinator is told: codes. The rest is in the cohorts' own logs."""
        text = str(error)
        for number, name in enumerate(self.job.sites):
            text = text.replace(f"site {number}: ", f"{name}: ")
        return text

    def keep_logs(self, folder: Path) -> None:
        """They are the cohorts' own."""


def _reach(
    job: Job,
    carry: Carry,
    choice: Sum,
    ledger: Ledger,
    timeout: float,
    quorum: float,
    needed: int,
    folder: Path,
) -> Federation:
    """A job's sites, through masked sums if its plan wants them. Receipts are kept in the run's
    folder: a party that was restored from an old copy is noticed."""
    seen = Receipts(folder / "receipts.json")
    engine = FlareSites(
        carry, job.sites, quorum=quorum, timeout=timeout, needed=needed, ledger=ledger,
        receipts=seen,
    )  # fmt: skip
    if not choice.masked:
        return engine
    third = None
    if job.compensator is not None:
        third = FlareSites(carry, [job.compensator], timeout=timeout, receipts=seen)
    assert job.roster is not None
    return masked(engine, third, job.roster)


def carry_out(job: Job, carry: Carry, own: Path, tell: Tell) -> str:
    """Run a job's plan or study in the coordinator's folder, or go on with it there; how it
    ended."""
    plan, folder = checked(job, allowed_modules(own)), run_folder(own, job)
    if isinstance(plan, StudyPlan):

        def watch(part: str, done: int, whole: int) -> None:
            tell({"part": part, "done": done, "whole": whole})

        cohorts = RealCohorts(job, carry, own)
        return str(run_study(plan, folder, resume=True, watch=watch, place=cohorts)["status"])

    def progress(now: Progress) -> None:
        facts = {name: getattr(now, name) for name in ("round", "rounds", "record")}
        pace, left = now.rounds_per_second, min(now.seconds_left, 1e9)
        tell({**facts, "rounds_per_second": pace, "seconds_left": left})

    place = RealSites(job, carry, own)
    return run(plan, folder, resume=True, progress=progress, report=False, place=place).status


def run_folder(own: Path, job: Job) -> Path:
    """Where the coordinator keeps the run of a study."""
    return own / "runs" / job.study


def own_run(own: Path, job: Job) -> Path | None:
    """The run folder of a job if it holds the run of this job's plan: who hands in something else
    under a study's name, or under a name that leads elsewhere, gets nothing of it."""
    try:
        plan, folder = checked(job, allowed_modules(own)), run_folder(own, job)
        held = load_any(folder / (FILE if isinstance(plan, StudyPlan) else "plan.toml"))
    except (CupolaError, OSError):
        return None
    same = type(held) is type(plan) and Proposal(held, "").digest == Proposal(plan, "").digest
    return folder if same else None


def checked(job: Job, modules: Iterable[str] | None = None) -> Plan | StudyPlan:
    """A job's plan or study, if real sites can run it. modules: those that it may name code of, at
    a coordinator, who has not written it; None: any."""
    plan = load_any(job.plan + "\n") if modules is None else read_proposal(job.plan, modules).plan
    if not _STUDY.fullmatch(job.study):
        raise PlanError(f"a study's name has letters, digits, '.', '-' and '_': '{job.study}'")
    if isinstance(plan, Plan):
        _check_training(plan)
    if plan.sum.masked and job.roster is None:
        raise PlanError("sum.masked: masked sums need the roster that the sites agreed on")
    if isinstance(plan, StudyPlan) and job.roster is None:
        raise PlanError("cohorts check what they are told: a study needs the roster of its sites")
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


def _check_training(plan: Plan) -> None:
    if plan.many:
        raise PlanError("a plan with seeds or a grid stands for several runs: submit one of them")
    if plan.twin:
        raise PlanError("twin = true: nobody has all data of real sites in one place")
    if plan.privacy.by_coordinator:
        raise PlanError(
            f"privacy.mechanism = '{plan.privacy.mechanism}': the coordinator's noise would come "
            "from the plan's seed, which everybody knows; choose one whose noise sites draw "
            "(dp-sgd, output, objective, distributed)"
        )
    if plan.privacy.on and plan.privacy.epsilon is not None:
        raise PlanError(
            "privacy.epsilon: the noise it needs depends on the sites' numbers of samples, which "
            "stay with them; give privacy.noise (`cupola check` finds it in a simulation)"
        )


def with_public_data(plan: Plan, own: Path) -> Plan:
    """A plan whose public data are a file in the folder 'public' of the coordinator: whoever hands
    a plan in has no say in what else is read there."""
    given = {key: plan.data.options[key] for key in _FILES if plan.data.options.get(key)}
    if not given:
        return plan
    facts = plan.to_dict()
    facts["data"] |= {key: str(public(own, value)) for key, value in given.items()}
    return load(facts)


def public(own: Path, given: object) -> Path:
    """A public file that a plan names: its name, in the coordinator's folder for them."""
    return own / "public" / Path(str(given)).name


def packed(folder: Path, names: tuple[str, ...] | None = None) -> bytes:
    """Files of a run folder as a zip: these, or all but the checkpoint, which stays."""
    found = io.BytesIO()
    present = [name for name in names or CONTENTS if (folder / name).is_file()]
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


def unpack(data: bytes, folder: Path, allowed: tuple[str, ...] = CONTENTS) -> None:
    """Write a zip's files into a folder; only names that a run folder has, and no sub-folders."""
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
