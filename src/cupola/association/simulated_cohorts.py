"""The cohorts of a simulated study: all on this machine, with the files that the study names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.association.files import Variants, as_lines, read_variants
from cupola.association.plan import StudyPlan
from cupola.association.site import UNLISTED, Site, StudyHost, most_iterations
from cupola.association.study_choices import WholeGenome

MOST = 500  # data sets to choose from


@dataclass
class SimulatedCohorts(StudyHost):
    """listed: the public list of variants, if the study names one."""

    listed: Variants | None = None

    def complaints(self) -> list[str]:
        """The last line of each cohort's own log."""
        return [_named(site, line) for site in self.cohorts for line in site.log[-1:]]

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
    base = Path(plan.folder)
    sites = [
        Site(
            cohort.files(base),
            plan.wanted,
            salt=plan.salt.encode() if plan.fingerprints and plan.salt else None,
            proposes=plan.variants is None,
            rare=plan.rare,
            iterations=most_iterations(plan),
            people_per_column=plan.people_per_column,
            limits=plan.limits,
            whole_genome=plan.whole_genome or WholeGenome(),
        )
        for cohort in plan.cohorts
    ]
    return SimulatedCohorts(sites, read_variants(base / plan.variants) if plan.variants else None)


def _named(site: Site, line: str) -> str:
    prefix = f"cohort '{site.files.name}'"
    return line if line.startswith(prefix) else f"{prefix}: {line}"


def data_sets(folder: Path | None) -> dict[str, dict[str, Any]]:
    """PLINK data sets below a folder, from which simulated sites choose: what a plan says of them,
    by name. Every .bed file with its .bim and .fam is one; a list of people beside it
    (BASE.NAME.keep) makes one of its own."""
    found: dict[str, dict[str, Any]] = {}
    if folder is None or not folder.is_dir():
        return found
    for bed in sorted(folder.rglob("*.bed"))[:MOST]:
        if not all(bed.with_suffix(end).is_file() for end in (".bim", ".fam")):
            continue
        base = bed.relative_to(folder).with_suffix("")
        files: dict[str, Any] = {"bfile": base.as_posix()}
        for key, end in (("pheno", ".pheno"), ("cov", ".cov")):
            if bed.with_suffix(end).is_file():
                files[key] = base.with_suffix(end).as_posix()
        keeps = sorted(bed.parent.glob(f"{bed.stem}.*.keep"))
        for keep in keeps:
            name = keep.relative_to(folder).as_posix().removesuffix(".keep")
            found[name] = {**files, "keep": f"{name}.keep"}
        if not keeps:
            found[base.as_posix()] = files
    return found
