"""A real cohort in an association study: its own files, what they must hold, what it remembers of
what it was asked, and what the study would tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from cupola.analysis.explain import explain
from cupola.analysis.preview import Preview, answer_row
from cupola.analysis.protocol import OwnSite, SiteRules
from cupola.association.cohort import Files, open_cohort, problems
from cupola.association.enough_people import require_own_people
from cupola.association.files import CohortError, Variants, read_people, read_variants
from cupola.association.fingerprints import NO_SALT
from cupola.association.limits import Released, described
from cupola.association.plan import CohortFiles, StudyPlan
from cupola.association.preview import outline
from cupola.association.site import Site, most_iterations, released_numbers
from cupola.association.structure.genome_tasks import foreseen
from cupola.association.structure.step_ones import StepOnes
from cupola.association.study_choices import WholeGenome
from cupola.association.study_parts import parts_of
from cupola.association.study_program import Association
from cupola.association.tasks import UNMASKED, withheld_for_cells
from cupola.errors import DataError
from cupola.secure.durable_dict import Memory
from cupola.secure.roster import Roster


@dataclass
class OwnCohort:
    """One cohort, at its place among others that are elsewhere."""

    site: Site
    sites: int

    def __len__(self) -> int:
        return self.sites

    def data(self, site: int) -> Site:  # noqa: ARG002
        return self.site

    def workspace(self) -> None:
        """There is but one cohort here."""

    def close(self) -> None:
        self.site.close()


def cohort_files(site: OwnSite) -> Files:
    """Where the files of the cohort are."""
    try:
        found = CohortFiles.model_validate({"name": site.rules.name, **site.data})
    except ValidationError as error:
        lines = explain(error, f"data set '{site.dataset}'", (), CohortFiles)
        raise DataError("; ".join(lines)) from None
    return found.files(site.folder)


def own_host(plan: StudyPlan, site: OwnSite) -> OwnCohort:
    """This site's cohort. What it was asked is remembered beyond its process."""
    parts_of(plan)  # a new process knows their tasks
    salt = site.rules.salt
    own = Site(
        cohort_files(site),
        plan.wanted,
        salt=salt.encode() if plan.fingerprints and salt else None,
        proposes=plan.variants is None,
        rare=plan.rare,
        iterations=most_iterations(plan),
        people_per_column=plan.people_per_column,
        limits=plan.limits,
        whole_genome=plan.whole_genome or WholeGenome(),
        least_cohorts=plan.least_cohorts or 0,
        apart=plan.apart,
        study=plan.study(),
        of_study=site.study,
        released=_released(plan, site),
        step_ones=_step_ones(plan, site),
        memory=Memory(site.place / "asked.jsonl"),
        folder=site.place / "asked",
        own_log=site.log,
    )
    return OwnCohort(own, site.sites)


# What is told of single people


def released_file(book: Path) -> Path:
    """Where it is kept how many numbers about its people a data set has told. book: of what it has
    spent."""
    return book.with_suffix(".released.jsonl")


def told_before(book: Path) -> dict[str, float]:
    """Numbers a person that regressions and components on a data set have told, by study."""
    path = released_file(book)
    if not path.exists():
        return {}
    memory = Memory(path)
    try:
        return Released(memory, "", 0, 0.0).entries()
    finally:
        memory.close()


def _released(plan: StudyPlan, site: OwnSite) -> Released | None:
    if not plan.regression and plan.components is None:
        return None
    memory = Memory(released_file(site.book))
    return Released(memory, site.study, released_numbers(plan), site.rules.limits.released)


def _step_ones(plan: StudyPlan, site: OwnSite) -> StepOnes | None:
    if plan.whole_genome is None:
        return None
    memory = Memory(site.book.with_suffix(".stepones.jsonl"))
    return StepOnes(memory, site.study, plan.trait.column or "", plan.whole_genome.own_people)


def weaker_limits(plan: StudyPlan, rules: SiteRules) -> list[str]:
    """Where a study would tell more of single people than the site's limits allow."""
    found, wanted = [], rules.limits
    if plan.test in ("logistic", "mixed") and plan.limits.effective < wanted.effective:
        found.append(
            f"the study's limits.effective is {plan.limits.effective:g}; this site wants at least "
            f"{wanted.effective:g}"
        )
    if plan.limits.least_cell < wanted.least_cell:
        found.append(
            f"the study's limits.least_cell is {plan.limits.least_cell}; this site wants at least "
            f"{wanted.least_cell}"
        )
    keys = ["people"] if plan.components is not None or plan.test == "mixed" else []
    keys += ["carriers"] if plan.components is not None else []
    for key in keys:
        given, least = getattr(plan.limits, key), getattr(wanted, key)
        if given < least:
            found.append(f"the study's limits.{key} is {given}; this site wants at least {least}")
    if plan.components is not None and plan.limits.directions > wanted.directions:
        found.append(
            f"the study's limits.directions is {plan.limits.directions:g}; this site wants at most "
            f"{wanted.directions:g}"
        )
    if plan.whole_genome is not None:
        for key in ("people", "own_people", "carriers", "people_per_marker"):
            ours, theirs = getattr(wanted, f"genome_{key}"), getattr(plan.whole_genome, key)
            if theirs < ours:
                found.append(
                    f"the study's whole_genome.{key} is {theirs:g}; this site wants at least "
                    f"{ours:g} (limits.genome_{key})"
                )
    return found


def data_problems(plan: StudyPlan, site: OwnSite) -> list[str]:
    """Why this cohort cannot take part, a line each."""
    files, found = cohort_files(site), []
    if plan.variants is not None and plan.variants_hash is None:
        found.append(
            f"the study does not say which list '{plan.variants}' is: its author adds "
            "variants_hash, which `cupola gwas list FILE` prints"
        )
    found += problems(files, plan.wanted)
    return found or _too_few(plan, files)


def _too_few(plan: StudyPlan, files: Files) -> list[str]:
    """Who takes part is known once all of a cohort is read: only where their number decides."""
    if plan.components is None and plan.test != "mixed":
        return []
    try:
        require_own_people(plan, open_cohort(files, plan.wanted))
    except CohortError as error:
        return [str(error)]
    return []


# What would be asked


def preview(plan: StudyPlan, site: OwnSite, roster: Roster) -> Preview:
    """An association study as if every cohort had this one's variants and as many people: every
    kind of question once, as large as it gets."""
    files = cohort_files(site)
    people = len(read_people(files.fam).person) * len(roster.sites)
    found = Preview(study_answers(plan, read_variants(files.bim), people, roster))
    if not problems(files, plan.wanted):  # else they are among the objections
        found.limits = _limits(plan, site, Site(files, plan.wanted), roster)
    return found


def study_answers(
    plan: StudyPlan, variants: Variants, people: int, roster: Roster
) -> list[dict[str, Any]]:
    """Every kind of answer that an association study asks for; variants, people: as `outline` takes
    them."""
    listed = plan.variants is not None
    study = Association(plan.study(), len(roster.sites), apart=plan.apart)
    rows = []
    for kind, question, times in outline(study, variants, people, listed):
        whole = np.uint8 if question.task in UNMASKED else np.int64  # lists and hashes are bytes
        rows.append({**answer_row(kind, question, plan.sum, roster, whole), "times": times})
    return rows


def _limits(plan: StudyPlan, own: OwnSite, site: Site, roster: Roster) -> list[str]:
    """The study's limits, what they cost here, and what of this data set was told before. People of
    all cohorts: as if all had as many as this one."""
    people = int(site.cohort.loaded.sum()) * len(roster.sites)
    numbers = released_numbers(plan)
    found = described(plan, people, numbers)
    if plan.fingerprints and not own.rules.salt:
        found.insert(0, f"WARNING: {NO_SALT}")
    if plan.limits.least_cell:
        binary = site.cohort.looks_binary if plan.binary is None else plan.binary
        genotypes = plan.trend or plan.quality.hardy_weinberg > 0
        lost = withheld_for_cells(site, plan.limits.least_cell, binary, genotypes)
        found.append(f"this site would withhold {lost:,} variants for small counts")
    if plan.whole_genome is not None:
        found.append(foreseen(site, plan.whole_genome, people, plan.binary))
    here, vectors = int(site.cohort.loaded.sum()), plan.mixed.vectors
    if plan.test == "mixed" and here < vectors:
        found.append(
            f"sums about {vectors:,} vectors would tell what markers have in common in this site's "
            f"{here:,} people altogether, if all other sites helped the coordinator"
        )
    if plan.regression or plan.components is not None:
        most = own.rules.limits.released
        try:
            before = sum(told_before(own.book).values())
        except DataError:  # a study under way holds the book
            return [*found, "what other studies have told is not known while one is under way"]
        components, share = plan.components, numbers / max(1, people)
        share += components.sums * components.block / max(1, here) if components else 0
        beyond = before + share > most
        found.append(
            f"other studies have told {before:.2f} numbers a person; this site allows {most:g} in "
            f"all{': this study would be refused before its first total' if beyond else ''}"
        )
    return found
