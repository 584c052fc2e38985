"""A plan's run at the coordinator of real sites: the program of a simulation, over FLARE."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from cupola.data import FederatedData, SiteData
from cupola.errors import CupolaError, PlanError
from cupola.federation import Federation, Ledger
from cupola.flare.engine import Carry, FlareSites, masked
from cupola.flare.jobs import Job
from cupola.learn import TrainingHost
from cupola.plan import compose
from cupola.plan.checkpoint import write_atomically
from cupola.plan.folder import CONTENTS, Run
from cupola.plan.load import load
from cupola.plan.plan import Plan
from cupola.plan.run import Watch, run

#: What sites get at the end, in this order.
RESULTS = (
    "plan.toml", "history.jsonl", "result.json", "model.safetensors", "partition.json",
    "personal.json", "personal.safetensors",
)  # fmt: skip
_LARGEST = 1 << 32
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
        known = compose.federated_data(plan)
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
        return TrainingHost(compose.problem(plan, data), data)

    def federation(
        self, plan: Plan, host: TrainingHost, ledger: Ledger, folder: Path
    ) -> Federation:
        del host, folder
        quorum, timeout = plan.engine.quorum, plan.engine.timeout
        engine = FlareSites(
            self.carry,
            self.job.sites,
            quorum=quorum,
            timeout=timeout,
            needed=plan.sum.minimum if plan.sum.masked else 1,
            ledger=ledger,
        )
        if not plan.sum.masked:
            return engine
        third = None
        if self.job.compensator is not None:
            third = FlareSites(self.carry, [self.job.compensator], timeout=timeout)
        assert self.job.roster is not None
        return masked(engine, third, self.job.roster)


def carry_out(job: Job, carry: Carry, own: Path, watch: Watch) -> Run:
    """Run a job's plan in the coordinator's folder, or go on with it there."""
    plan = checked(job)
    folder = own / "runs" / job.study
    place = RealSites(job, carry, own)
    return run(plan, folder, resume=True, progress=watch, report=False, place=place)


def checked(job: Job) -> Plan:
    """A job's plan, if real sites can run it."""
    plan = load(job.plan)
    if not _STUDY.fullmatch(job.study):
        raise PlanError(f"a study's name has letters, digits, '.', '-' and '_': '{job.study}'")
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
    if plan.sum.masked and job.roster is None:
        raise PlanError("sum.masked: masked sums need the roster that the sites agreed on")
    return plan


def with_public_data(plan: Plan, own: Path) -> Plan:
    """A plan whose public data are a file in the folder 'public' of the coordinator: whoever hands
    a plan in has no say in what else is read there."""
    public = plan.data.options.get("public")
    if plan.data.name != "elsewhere" or public is None:
        return plan
    facts = plan.to_dict()
    facts["data"]["public"] = str(own / "public" / Path(str(public)).name)
    return load(facts)


def packed(folder: Path, names: tuple[str, ...] | None = None) -> bytes:
    """Files of a run folder as a zip: these, or all but the checkpoint, which stays."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or CONTENTS:
            if (folder / name).is_file():
                archive.write(folder / name, name)
    return found.getvalue()


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
    except zipfile.BadZipFile:
        raise CupolaError("the results are not readable") from None
