"""Association studies over cohorts that keep their genotypes: programs over sum and gather."""

from cupola.association.cohort import Cohort, Files, Wanted, open_cohort
from cupola.association.files import CohortError, Variants, read_variants
from cupola.association.kernels import has_numba
from cupola.association.results import Results, inflation, results
from cupola.association.site import Site, StudyHost
from cupola.association.study_choices import Newton, Quality, Score, Study, Trait
from cupola.association.study_program import Association

__all__ = [
    "Association",
    "Cohort",
    "CohortError",
    "Files",
    "Newton",
    "Quality",
    "Results",
    "Score",
    "Site",
    "Study",
    "StudyHost",
    "Trait",
    "Variants",
    "Wanted",
    "has_numba",
    "inflation",
    "open_cohort",
    "read_variants",
    "results",
]
