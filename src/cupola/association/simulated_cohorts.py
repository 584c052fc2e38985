"""The cohorts of a simulated study: all on this machine, with the files that the study names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cupola.association.files import Variants, as_lines
from cupola.association.plan import StudyPlan
from cupola.association.reference_frequencies import public_list
from cupola.association.site import UNLISTED, Site, StudyHost, most_iterations
from cupola.association.study_choices import WholeGenome
from cupola.association.study_parts import parts_of


@dataclass
class SimulatedCohorts(StudyHost):
    """listed: the public list of variants, if the study names one."""

    listed: Variants | None = None

    def complaints(self) -> list[str]:
        """The last line of each cohort's own log; cohorts that share files say it once."""
        said: dict[str, list[str]] = {}
        for site in self.cohorts:
            for line in site.log[-1:]:
                told = line.removeprefix(f"cohort '{site.files.name}': ")
                said.setdefault(told, []).append(site.files.name)
        return [_named(names, line) for line, names in said.items()]

    def keep_logs(self, folder: Path) -> None:
        """What cohorts complained of, and tables for their own eyes: variants that are on no list,
        relatives."""
        place = folder / "sites"
        for site in self.cohorts:
            tables = dict(site.tables)
            if site.unlisted is not None and len(site.unlisted):
                tables[UNLISTED] = as_lines(site.unlisted)
            for name, text in tables.items():
                place.mkdir(exist_ok=True)
                (place / f"{site.files.name}.{name}").write_bytes(text)
            if site.log:
                place.mkdir(exist_ok=True)
                with (place / f"{site.files.name}.log").open("a", encoding="utf-8") as file:
                    file.writelines(line + "\n" for line in site.log)


def simulated_cohorts(plan: StudyPlan) -> SimulatedCohorts:
    """The cohorts of a study, opened when they are first asked."""
    parts_of(plan)  # a cohort in a process of its own knows the tasks of the study's parts
    base = Path(plan.folder)
    salt = plan.salt or f"of a simulation with seed {plan.seed}"
    sites = [
        Site(
            cohort.files(base),
            plan.wanted,
            salt=salt.encode() if plan.fingerprints else None,
            proposes=plan.variants is None,
            rare=plan.rare,
            iterations=most_iterations(plan),
            people_per_column=plan.people_per_column,
            limits=plan.limits,
            whole_genome=plan.whole_genome or WholeGenome(),
            least_cohorts=plan.least_cohorts or 0,
            apart=plan.apart,
            study=plan.study(),
        )
        for cohort in plan.cohorts
    ]
    listed, strand = plan.variants, plan.quality.unknown_strand
    return SimulatedCohorts(sites, public_list(base / listed, strand) if listed else None)


def _named(names: list[str], line: str) -> str:
    if line.startswith(f"cohort '{names[0]}'"):
        return line
    told = ", ".join(f"'{name}'" for name in names)
    return f"cohort{'s' if len(names) > 1 else ''} {told}: {line}"
