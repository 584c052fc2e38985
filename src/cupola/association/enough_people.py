"""How many people a study needs: with fewer, totals could tell of single ones."""

from __future__ import annotations

from cupola.association.cohort import Cohort
from cupola.association.design import fewest_people
from cupola.association.files import CohortError
from cupola.association.study_choices import PEOPLE_PER_PARTNER, Study
from cupola.errors import DataError


def require_own_people(study: Study, cohort: Cohort) -> None:
    """Refuse, at a cohort, a study that is about too few people of its own, whatever the others
    have. The first question asks for it already, so that nothing is spent in vain."""
    limits, components = study.limits, study.components
    where, loaded = f"cohort '{cohort.files.name}'", int(cohort.loaded.sum())
    if components is not None and loaded < limits.people:
        raise CohortError(
            "too-few-people",
            where,
            f"has {loaded:,} people; for components it needs {limits.people:,} (limits.people)",
        )
    directions = components.sums * components.block if components is not None else 0
    if directions > limits.directions * loaded:
        raise CohortError(
            "too-many-directions",
            where,
            f"has {loaded:,} people; the study may ask for {directions} directions "
            f"(components.sums times components.block), and {limits.directions:g} a person are "
            "allowed (limits.directions): let it ask for fewer",
        )
    prune = components.prune if components is not None else None
    if prune is not None and loaded < 2 * (prune.window - 1) * PEOPLE_PER_PARTNER:
        raise CohortError(
            "too-few-people",
            where,
            f"has {loaded:,} people; windows of {prune.window} markers (components.prune) need "
            f"{2 * (prune.window - 1) * PEOPLE_PER_PARTNER:,}: choose a smaller window",
        )
    tested = int(cohort.tested(False, True).sum()) if study.test == "mixed" else limits.people
    if tested < limits.people:
        raise CohortError(
            "too-few-people",
            where,
            f"has {tested:,} people with trait and covariates; for a mixed model it needs "
            f"{limits.people:,} (limits.people)",
        )


def require_people(study: Study, tested: int) -> None:
    """Refuse a study of so few people that totals could tell single genotypes."""
    if not study.regression:
        return
    columns = len(study.columns) + 2 + study.sex_on_x + (study.whole_genome is not None)
    if study.whole_genome and (objection := study.whole_genome.objection(tested)):
        raise DataError(objection)
    least = fewest_people(columns, study.people_per_column)
    if tested < least:
        raise DataError(
            f"{tested:,} people have trait and covariates, but a regression with {columns} "
            f"columns needs {least:,} (people_per_column = {study.people_per_column}): with "
            "fewer, the totals could tell single genotypes; use fewer covariates or more people"
        )
    mixed = study.mixed
    if study.test == "mixed" and study.people_per_column and tested < mixed.vectors:
        raise DataError(
            f"{tested:,} people have trait and covariates, but the mixed model may multiply "
            f"markers by {mixed.vectors:,} vectors over them ({mixed.systems} in each of "
            f"{mixed.sums} sums, {mixed.signs} of random signs): from as many as there are people, "
            "genotypes would follow; use fewer groups, markers of calibration, or sums (mixed), "
            "test = 'linear', or more people"
        )
