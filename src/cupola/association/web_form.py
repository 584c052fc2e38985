"""The form for association studies: which keys of a plan it asks for, when, and in which words.

Whoever fills it in may be a clinician: what most studies decide stands first, in plain words; what
a statistician may want to change is folded. `LEFT_OUT` names every other key, and why it is no
field; a test compares both with the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cupola.analysis.forms import Entry, Form, When

REGRESSION: When = {"test": ["linear", "logistic", "mixed"]}
FITTED: When = {"test": ["linear", "logistic"]}
MIXED: When = {"test": ["mixed"]}
WEIGHTED: When = {"test": ["logistic", "mixed"]}
LOGISTIC: When = {"test": ["logistic"]}
CHI_SQUARE: When = {"test": ["chi-square"]}
GENOME: When = {"whole_genome.use": ["true"], **FITTED}
COMPONENTS: When = {"!components.count": [""]}
MASKED: When = {"sum.kind": ["masked"]}

_SERVER = "the server and the sites decide it"
_TEXT = "rarely changed: in the plan's text"
#: Keys that are no field, with all below them.
LEFT_OUT: Mapping[str, str] = {
    "cohorts": "sites join, each with files of its own",
    "folder": "sites join, each with files of its own",
    "salt": "what cohorts share must not be told to the coordinator",
    "variants": "a list is a file of the coordinator's, which the plan's text names",
    "variants_hash": "goes with `variants`",
    "kind": "it is this form",
    "seed": "of what a simulation draws; results do not depend on it",
    "seeds": "one study, one result",
    "grid": "one study, one result",
    "trait.columns": "one study, one result: a study for each trait",
    "engine": _SERVER,
    "track": _SERVER,
    "checkpoint_seconds": _SERVER,
    "sum.changes": "every total of a study is of all its cohorts",
    "sum.change": "of trainings",
    "sum.samples": "of trainings",
    "sum.bits": "a study knows its bounds",
    "components.variants": "a list of names: in the plan's text",
    "components.prune": "for studies without a pruned list: in the plan's text",
    "newton.tolerance": _TEXT,
    **{
        f"whole_genome.{key}": _TEXT
        for key in (
            "block",
            "folds",
            "heritability",
            "stacked",
            "bits",
            "people_per_marker",
            "people_per_prediction",
        )
    },
    "vif": _TEXT,
    "largest": _TEXT,
}

_TESTS = (
    ("logistic", "A disease, or any yes or no: people with and without it"),
    ("linear", "A measured quantity: blood pressure, height"),
    ("mixed", "A measured quantity, with relatives or mixed ancestry: mixed model"),
    ("chi-square", "A disease, quick look: allele counts, no covariates"),
)
_TRAITS = (
    ("auto", "found out from the values"),
    ("binary", "yes or no: 2 with, 1 without"),
    ("quantitative", "a measured quantity"),
)
_SHARED = (("warn", "a warning"), ("stop", "the study stops before it counts genotypes"))
_SUMS = (
    ("masked", "Masked: no hospital's numbers are seen, only the total"),
    ("plain", "Plain: the coordinator sees each hospital's numbers"),
)
_STRANDS = (("keep", "taken as they are"), ("drop", "left out"))

_STUDY = (
    Entry("name", "Name of the study", needed=True, about="Its files are called so, too."),
    Entry("test", "What is studied", needed=True, options=_TESTS,
          about="Logistic regression, linear regression, a mixed model (as BOLT-LMM), or a "
          "chi-square test (PLINK: `--logistic`, `--linear`, `--assoc`)."),
    Entry("trait.column", "Column of the trait",
          about="By the same name in every hospital's table of traits (.pheno). People with the "
          "disease have 2, people without it 1. Empty: the sixth column of the .fam files."),
    Entry("trait.kind", "What its values mean", options=_TRAITS,
          about="Only if it cannot be told from the values."),
    Entry("about.trait", "The trait in words", about="For the tables' description; such as type 2 "
          "diabetes."),
)  # fmt: skip
_CORRECTED = (
    Entry("covariates", "Covariates", REGRESSION, kind="list",
          about="Columns of the hospitals' tables of covariates (.cov), with commas between: what "
          "matters for the trait beside the genes, such as AGE. Few are best: each column needs 20 "
          "people, and more columns tell more of single people."),
    Entry("sex", "Correct for sex", REGRESSION, about="From the .fam files."),
    Entry("components.count", "Components of ancestry", default="",
          about="So many principal components are computed from all hospitals' genotypes, by sums. "
          "As covariates they are called PC1-10, beside AGE and others. Usual: 10. Empty: none."),
)  # fmt: skip
_FIT = (
    Entry("quality.maf", "Rarest variant: share of its rarer allele",
          about="Variants that are rarer over all hospitals are left out. Usual: 0.01."),
    Entry("quality.missing", "Most people without a call, share",
          about="Variants that fail more often are left out. Usual: 0.05 (PLINK: `--geno`)."),
    Entry("quality.hardy_weinberg", "Least Hardy-Weinberg p",
          about="Variants whose genotypes fit worse in people without the disease are left out: "
          "most are genotyping errors. Usual: 1e-6 (PLINK: `--hwe`)."),
    Entry("quality.founders", "In founders only",
          about="People whose parents are in the data say little about equilibrium."),
    Entry("quality.person_missing", "Most missing calls of a person, share",
          about="People with more are left out by their hospital. Usual: 0.05 (PLINK: `--mind`)."),
    Entry("quality.report", "Report on the quality of people"),
    Entry("quality.kinship", "Relatives: most kinship in a hospital",
          about="Of two people with at least this kinship their hospital leaves one out. 0.177: "
          "parents, children, siblings; 0.0884: second degree, too (plink2: `--king-cutoff`)."),
    Entry("quality.unknown_strand", "A/T and C/G variants", options=_STRANDS,
          about="Their strand cannot be told: leave them out unless all hospitals used one chip."),
    Entry("fingerprints", "Look for people in two hospitals",
          about="By hashes of ids that nobody reads without the hospitals' common salt."),
    Entry("shared", "If hospitals share people", {"fingerprints": ["true"]}, options=_SHARED,
          about="Either way you learn how many, for each pair of hospitals."),
    Entry("least_cohorts", "Fewest hospitals with a variant",
          about="Variants that some hospitals lack are tested in the others, if so many have them. "
          "Empty: all must have it."),
    Entry("dosages", "Imputed dosages", FITTED,
          about="The hospitals' files hold expected copies of an allele (.pgen, BGEN, VCF)."),
    Entry("quality.info", "Least imputation quality", {"dosages": ["true"], **FITTED},
          about="Imputed variants below it are left out (MACH's r2). Usual: 0.3."),
)  # fmt: skip
_PROTECTED = (
    Entry("sum.kind", "How hospitals' numbers are added up", options=_SUMS, default="plain",
          about="Masked sums give the same results. They need three hospitals or more."),
    Entry("limits.least_cell", "Smallest count that is told",
          about="A hospital withholds a variant with fewer alleles than this in a group of people. "
          "Official statistics use 5; rare variants are lost by it. 0: every count is told."),
    Entry("sum.minimum", "Fewest hospitals in a sum", MASKED),
    Entry("sum.protocol", "Protocol of masked sums", MASKED),
)  # fmt: skip
_TABLES = (
    Entry("tables", "Tables", kind="list"),
    Entry("about.build", "Genome build of all positions", about="GRCh37 or GRCh38; for the "
          "tables' description."),
    Entry("about.ancestry", "Ancestry of the people", kind="words",
          about="As the GWAS catalog names it, such as European; with commas between."),
    Entry("covariate_rows", "Covariates' coefficients, too", FITTED,
          about="The result keeps them for every variant."),
)  # fmt: skip
_COMPONENTS = (
    Entry("components.maf", "Least frequency of markers", COMPONENTS),
    Entry("components.density", "A picture of all people", COMPONENTS),
    Entry("components.block", "Directions in a sum", COMPONENTS),
    Entry("components.sums", "Most sums", COMPONENTS),
    Entry("components.residual", "Largest residual", COMPONENTS),
)
_SINGLE_PEOPLE = (
    Entry("people_per_column", "Fewest people a column", REGRESSION),
    Entry("limits.effective", "Least effective people", WEIGHTED),
    Entry("limits.people", "Fewest people of a cohort, for components"),
    Entry("limits.directions", "Most directions a person, for components"),
    Entry("limits.carriers", "Fewest carriers of a marker"),
    Entry("limits.grid", "Totals rounded to", REGRESSION),
    Entry("limits.outliers", "Covariates shortened to", REGRESSION),
    Entry("rare", "Fewest copies of a variant that a hospital names"),
)  # fmt: skip
_STATISTICS = (
    Entry("newton.firth", "Firth's fallback", LOGISTIC),
    Entry("newton.iterations", "Most iterations", LOGISTIC),
    Entry("score.below", "Score test first, p below", LOGISTIC),
    Entry("score.then", "Below it", LOGISTIC),
    Entry("trend", "Trend test, too", CHI_SQUARE),
    Entry("sex_on_x", "Sex as covariate on chromosome X", REGRESSION, kind="choice",
          options=(("true", "yes, as PLINK"), ("false", "no"))),
    Entry("ambiguous_sex", "Keep people of unknown sex"),
    Entry("one_sided", "Hospitals without cases, or without controls, take part"),
    Entry("confidence", "Confidence intervals"),
    Entry("about.ontology", "Ontology terms", kind="words"),
    Entry("about.genotyping", "Genotyping technology", kind="words"),
    Entry("chunk", "Variants a question"),
)  # fmt: skip
_CLUMPS = (
    Entry(
        "heterogeneity",
        "Do hospitals differ in their effects (Cochran's Q)?",
        {"test": ["chi-square", "linear", "logistic"]},
    ),
    Entry("clump.p1", "Largest p of a hit"),
    Entry("clump.p2", "Largest p of others"),
    Entry("clump.r2", "Least r²"),
    Entry("clump.kb", "Kilobases around a hit"),
)
_MIXED = (
    Entry("mixed.groups", "Groups of chromosomes", MIXED),
    Entry("mixed.heritability", "Heritability, if known", MIXED),
    Entry("mixed.maf", "Least frequency of markers", MIXED),
    Entry("mixed.sums", "Most sums", MIXED),
    Entry("mixed.tolerance", "Tolerance", MIXED),
    Entry("mixed.calibration", "Markers of calibration", MIXED),
    Entry("mixed.probes", "Random signs for heritability", MIXED),
)
_GENOME: tuple[Entry, ...] = (
    Entry("whole_genome.use", "Take the rest of the genome into account", FITTED,
          default="false"),
    Entry("whole_genome.components_elsewhere", "No covariate is named PC1, PC2, ...", GENOME),
    Entry("whole_genome.maf", "Least frequency of a marker", GENOME),
    Entry("whole_genome.carriers", "Fewest carriers of a marker in a hospital", GENOME),
    Entry("whole_genome.people", "Fewest people, all together", GENOME),
    Entry("whole_genome.own_people", "Fewest people of a hospital", GENOME),
)  # fmt: skip
_GROUPS = (
    ("The study", _STUDY),
    ("Corrected for", _CORRECTED),
    ("People and variants that are good enough", _FIT),
    ("How hospitals are protected", _PROTECTED),
    ("Results", _TABLES),
    ("More: components of ancestry", _COMPONENTS),
    ("More: mixed model", _MIXED),
    ("More: whole-genome regression", _GENOME),
    ("More: hits that are one", _CLUMPS),
    ("More: what totals tell of single people", _SINGLE_PEOPLE),
    ("More: statistics", _STATISTICS),
)
_LEADS = {
    "More: whole-genome regression": "Corrects for relatives and ancestry; needs principal "
    "components among the covariates, and a thousand people.",
    "More: hits that are one": "Neighbours that are inherited together are listed as one hit.",
    "Corrected for": "Without it, variants that go with age, sex or ancestry can look like causes.",
    "People and variants that are good enough": "Empty: everything is kept.",
    "How hospitals are protected": "Genotypes never leave a hospital; what leaves are counts and "
    "sums over its people.",
}


@cache
def forms() -> dict[str, Form]:
    about = (
        "Which genetic variants go with a disease or a measurement, as PLINK would print it for "
        "the people of all hospitals together, while genotypes stay where they are."
    )
    start = {
        "name": "association", "test": "logistic", "sum": {"kind": "masked"},
        "tables": ["plink", "parquet"],
    }  # fmt: skip
    folded = frozenset(title for title, _ in _GROUPS if title.startswith("More: "))
    title = "Genome-wide association"
    return {
        "association": Form(about, start, _GROUPS, "test", title=title, leads=_LEADS, folded=folded)
    }
