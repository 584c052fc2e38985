"""How many people a study needs: with fewer, totals could tell of single ones."""

from __future__ import annotations

from cupola.association.design import fewest_people
from cupola.association.study_choices import Study
from cupola.errors import DataError


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
