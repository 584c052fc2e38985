"""The form for association studies: which keys of a plan it asks for, and when."""

from __future__ import annotations

from functools import cache

from cupola.analysis.forms import Entry, Form, When


@cache
def forms() -> dict[str, Form]:
    regression: When = {"test": ["linear", "logistic", "mixed"]}
    mixed: When = {"test": ["mixed"]}
    weighted: When = {"test": ["logistic", "mixed"]}
    logistic: When = {"test": ["logistic"]}
    genome: When = {"whole_genome.use": ["true"], **regression}
    masked: When = {"sum.kind": ["masked"]}
    groups = (
        ("The study", (Entry("name", "Name", needed=True), Entry("test", "Test", needed=True))),
        ("Trait and covariates", (
            Entry("trait.column", "Trait"), Entry("trait.kind", "Kind of trait"),
            Entry("covariates", "Covariates", regression, kind="list"),
            Entry("sex", "Sex as covariate", regression),
            Entry("dosages", "Imputed dosages", regression),
            Entry("trend", "Trend test", {"test": ["chi-square"]}),
            Entry("newton.firth", "Firth's fallback", logistic),
            Entry("score.below", "Score test first, p below", logistic),
            Entry("score.then", "Below it", logistic),
            Entry("people_per_column", "Fewest people a column", regression),
            Entry("whole_genome.use", "Rest of the genome taken into account", regression,
                  default="false"),
            Entry("whole_genome.components_elsewhere", "No covariate is named PC1, PC2, ...",
                  genome),
            Entry("whole_genome.maf", "Least frequency of a marker", genome),
            Entry("whole_genome.carriers", "Fewest carriers of a marker in a cohort", genome),
        )),
        ("Mixed model", (
            Entry("mixed.groups", "Groups of chromosomes", mixed),
            Entry("mixed.heritability", "Heritability, if known", mixed),
            Entry("mixed.maf", "Least frequency of markers", mixed),
            Entry("mixed.sums", "Most sums", mixed),
            Entry("mixed.tolerance", "Tolerance", mixed),
            Entry("mixed.calibration", "Markers of calibration", mixed),
            Entry("mixed.probes", "Random signs for heritability", mixed),
            Entry("mixed.people", "Fewest people of a cohort", mixed),
        )),
        ("Quality", (
            Entry("quality.maf", "Least minor allele frequency"),
            Entry("quality.missing", "Most missing calls, variant"),
            Entry("quality.hardy_weinberg", "Least Hardy-Weinberg p"),
            Entry("quality.person_missing", "Most missing calls, person"),
            Entry("quality.kinship", "Relatives: most kinship"),
            Entry("quality.unknown_strand", "Unknown strand"),
            Entry("quality.info", "Least imputation quality", regression),
        )),
        ("What totals tell of single people", (
            Entry("limits.effective", "Least effective people", weighted),
            Entry("limits.least_cell", "Least count told"),
            Entry("limits.grid", "Totals rounded to", regression),
            Entry("limits.outliers", "Covariates shortened to", regression),
        )),
        ("Sums", (
            Entry("sum.kind", "Sums"), Entry("sum.protocol", "Protocol", masked),
            Entry("sum.minimum", "Fewest sites in a sum", masked),
            Entry("chunk", "Variants a question"),
        )),
        ("Tables", (
            Entry("tables", "Tables", kind="list"),
            Entry("covariate_rows", "Covariates' coefficients", {"test": ["linear", "logistic"]}),
        )),
    )  # fmt: skip
    about = "Which variants go with a trait, over cohorts that keep their genotypes."
    start = {"name": "association", "test": "logistic", "tables": ["plink", "parquet"]}
    return {"association": Form(about, start, groups, mark="test")}
