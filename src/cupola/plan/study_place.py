"""Where a study's cohorts are: all in one place, or real, elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from cupola.engines import InProcess
from cupola.errors import FederationError
from cupola.federation import Federation, Ledger
from cupola.gwas import Site, StudyHost, Variants, read_variants
from cupola.gwas.files import as_lines
from cupola.gwas.site import UNLISTED, most_iterations
from cupola.gwas.tasks import OPENLY
from cupola.plan.holding import run_id
from cupola.plan.study import StudyPlan
from cupola.secure import hidden_sums, simulated_parties


class StudyPlace(Protocol):
    """real: cohorts have files, memory and logs of their own, elsewhere."""

    @property
    def real(self) -> bool: ...

    def listed(self, plan: StudyPlan) -> Variants | None:
        """The public list of variants, if the study names one."""

    def federation(self, plan: StudyPlan, ledger: Ledger, folder: Path) -> Federation: ...

    def explained(self, error: FederationError) -> str:
        """What went wrong, in the words that are known here."""

    def keep_logs(self, folder: Path) -> None:
        """Write down what cohorts complained of and could not name, where that is known here."""


class Gathered:
    """All cohorts on this machine, with the files that the study names."""

    real = False

    def __init__(self) -> None:
        self._sites: list[Site] = []

    def listed(self, plan: StudyPlan) -> Variants | None:
        return read_variants(Path(plan.folder) / plan.variants) if plan.variants else None

    def sites(self, plan: StudyPlan) -> list[Site]:
        """The cohorts, opened when they are first asked."""
        self._sites = [
            Site(
                cohort.files(Path(plan.folder)),
                plan.wanted,
                salt=plan.salt.encode() if plan.fingerprints and plan.salt else None,
                proposes=plan.variants is None,
                rare=plan.rare,
                iterations=most_iterations(plan),
                people_per_column=plan.people_per_column,
                limits=plan.limits,
            )
            for cohort in plan.cohorts
        ]
        return self._sites

    def federation(self, plan: StudyPlan, ledger: Ledger, folder: Path) -> Federation:
        sites = self.sites(plan)
        host = StudyHost(sites)
        facts: dict[str, Any] = {
            "seed": plan.seed, "workers": plan.workers, "quorum": 1.0, "ledger": ledger,
        }  # fmt: skip
        if not plan.sum.masked:
            return InProcess(host, **facts)
        parties = simulated_parties(
            f"{plan.name} {run_id(folder, 'masked')}",
            seed=plan.seed,
            sites=len(sites),
            minimum=len(sites),  # a total of fewer is never told: a late cohort can be waited for
            protocol=plan.sum.protocol,
            openly=OPENLY,
        )
        engine = InProcess(host, parties=parties.member, **facts)
        return hidden_sums(engine, parties, folder)

    def explained(self, error: FederationError) -> str:
        """The coordinator sees codes; here the cohorts' own logs are at hand, too."""
        told = [line for site in self._sites for line in _last(site)]
        return "; ".join(told) if told else str(error)

    def keep_logs(self, folder: Path) -> None:
        place = folder / "sites"
        for site in self._sites:
            if site.unlisted is not None and len(site.unlisted):
                place.mkdir(exist_ok=True)
                (place / f"{site.files.name}.{UNLISTED}").write_bytes(as_lines(site.unlisted))
            if site.log:
                place.mkdir(exist_ok=True)
                with (place / f"{site.files.name}.log").open("a", encoding="utf-8") as file:
                    file.writelines(line + "\n" for line in site.log)


def _last(site: Site) -> list[str]:
    prefix = f"cohort '{site.files.name}'"
    return [line if line.startswith(prefix) else f"{prefix}: {line}" for line in site.log[-1:]]
