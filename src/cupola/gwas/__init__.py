"""Association studies over cohorts that keep their genotypes: programs over sum and gather."""

from cupola.gwas.association import Association
from cupola.gwas.choices import Newton, Quality, Study, Trait
from cupola.gwas.cohort import Cohort, Files, Wanted, open_cohort
from cupola.gwas.files import CohortError, Variants, read_variants
from cupola.gwas.kernels import has_numba
from cupola.gwas.results import Results, inflation, results
from cupola.gwas.site import Site, StudyHost

__all__ = [
    "Association",
    "Cohort",
    "CohortError",
    "Files",
    "Newton",
    "Quality",
    "Results",
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
