"""What a study decides; frozen, checked, and the same in plans and in code."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cupola.association.component_choices import Components, expanded

COMPONENT = re.compile(r"PC\d+(-(PC)?\d+)?", re.IGNORECASE)  # covariates of this name
CASES, CONTROLS, OTHERS = range(3)  # rows of allele and genotype counts


class _Choice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Trait(_Choice):
    """What is studied."""

    column: str | None = None
    """Column of the .pheno files; without it the .fam files' sixth column."""
    columns: tuple[str, ...] = ()
    """Several columns of the .pheno files, any of which a person may lack: a run each, in a folder
    of its own. With `column` as well: that run alone."""
    kind: Literal["auto", "binary", "quantitative"] = "auto"
    """auto: binary if no cohort has another value than 1, 2, 0 and missing, as PLINK decides."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Trait:
        if twice := [name for name in self.columns if self.columns.count(name) > 1]:
            raise ValueError(f"columns: '{twice[0]}' stands there twice")
        if self.columns and self.column not in (None, *self.columns):
            raise ValueError(
                f"column = '{self.column}' is none of columns = {list(self.columns)}: give columns "
                "alone for a run each, or one of them as column"
            )
        return self


class Quality(_Choice):
    """Which variants and people are fit to be tested; variants over the pooled people."""

    maf: float = Field(default=0.0, ge=0, le=0.5)
    """Least frequency of the minor allele."""
    missing: float = Field(default=1.0, ge=0, le=1)
    """Largest share of people without a call at a variant (PLINK: --geno)."""
    hardy_weinberg: float = Field(default=0.0, ge=0, lt=1)
    """Least exact p of Hardy-Weinberg equilibrium in controls (quantitative trait: in all)."""
    founders: bool = True
    """Hardy-Weinberg equilibrium is tested in founders, people without father and mother in the
    .fam file, as PLINK does; not with the trend test, whose genotypes are everybody's."""
    person_missing: float = Field(default=1.0, ge=0, le=1)
    """Largest share of calls a person may miss, decided by the cohort alone (PLINK: --mind)."""
    kinship: float = Field(default=1.0, gt=0, le=1)
    """Of two people of a cohort with at least this kinship (KING-robust, over the autosomes) one is
    left out, decided by the cohort alone (plink2: --king-cutoff). 0.354: one person twice; 0.177:
    parents, children and siblings, too; 0.0884: second degree, too. 1: nobody."""
    unknown_strand: Literal["keep", "drop", "frequency"] = "keep"
    """A/T and C/G variants: taken to be on the same strand everywhere, left out, or told by how
    frequent their alleles are beside a public list with frequencies."""
    info: float = Field(default=0.0, ge=0, le=1)
    """With dosages: least ratio of their variance to 2p(1 - p) over the pooled people (MACH's
    r2)."""
    report: bool = False
    """Also count people by missing calls, heterozygosity and sex by chromosome X, and variants far
    from the pooled frequency (PLINK: --missing, --het, --check-sex)."""


class Newton(_Choice):
    """How logistic regression is solved."""

    iterations: int = Field(default=12, ge=1, le=100)
    """Most iterations, that with the shared weights of the covariates included."""
    tolerance: float = Field(default=1e-9, gt=0, lt=1e-2)
    """The step that changes the log-likelihood by less is the last (after one that changed it by
    about its square root)."""
    firth: bool = False
    """Fall back to Firth's penalised likelihood where plain logistic regression has no answer."""


class Mixed(_Choice):
    """The mixed model (BOLT-LMM's infinitesimal model), made of sums over all markers."""

    groups: int = Field(default=22, ge=2, le=22)
    """Groups of chromosomes; the one that a variant is on is left out of its model. 22: each
    chromosome by itself; 5: a fifth of them each, with a third of the bytes less."""
    calibration: int = Field(default=30, ge=1, le=200)
    """Markers by which the statistic is calibrated."""
    heritability: float | None = Field(default=None, ge=0.01, le=0.95)
    """Share of the trait's variance that all markers explain; without it, it is estimated."""
    probes: int = Field(default=20, ge=2, le=200)
    """Vectors of random signs by which heritability is estimated."""
    tolerance: float = Field(default=5e-4, gt=0, le=0.1)
    """The residuals, as a share of what they began with, at which the solution is good enough."""
    sums: int = Field(default=30, ge=2, le=100)
    """Most sums over all markers that the solution may take."""
    maf: float = Field(default=0.01, ge=0, lt=0.5)
    """Least frequency of a marker's minor allele; other variants are tested all the same."""

    @property
    def systems(self) -> int:
        """Right-hand sides at most: one for each group, one with nothing left out."""
        return self.groups + 1 + self.calibration

    @property
    def signs(self) -> int:
        """Vectors of random signs."""
        return 0 if self.heritability is not None else self.probes

    @property
    def vectors(self) -> int:
        """Over people, with which markers are multiplied, at most."""
        return self.systems * self.sums + self.signs


class Score(_Choice):
    """The score test, which may come before a logistic regression is fitted."""

    below: float = Field(default=1.0, gt=0, le=1)
    """Variants whose score test has p below this go on; the others keep the score test's p, with
    estimates of one step. 1: all go on."""
    then: Literal["fit", "saddle-point"] = "fit"
    """How they go on: the regression is fitted, or, where cases are few among many controls, the
    score test's p is put right by a saddle-point approximation."""

    @property
    def gone_on(self) -> float:
        """The share of variants that is foreseen to go on: twice that by chance."""
        return min(1.0, 2 * self.below)


class Limits(_Choice):
    """What totals may tell about single people. The last two change the results."""

    effective: float = Field(default=0.2, ge=0, lt=1)
    """A cohort withholds a variant where logistic weights leave fewer effective people, (sum of
    weights)^2 / (sum of their squares), than this share of those with a call, and fewer than 50."""
    least_cell: int = Field(default=0, ge=0)
    """A cohort withholds a variant of which it would tell a count of alleles or genotypes, among
    cases, controls or others, or the sums of people without a call, above 0 and below this. Nor
    does it count fewer people who are not tested. 0: none."""
    grid: float = Field(default=0.0, ge=0, le=1)
    """Cohorts round what they add to totals about variants to multiples of this. 0: exact."""
    outliers: float = Field(default=0.0, ge=0)
    """A person's standardised covariates are shortened to this many times the usual length (the
    root of their number). 0: never."""
    people: int = Field(default=200, ge=1)
    """A cohort with fewer people takes no part in a study with components or a mixed model."""
    directions: float = Field(default=0.5, gt=0)
    """A cohort refuses components that may ask for more directions (sums times block) than this
    many times its people."""
    carriers: int = Field(default=10, ge=0)
    """A cohort withholds a marker of which it has from 1 copy of the rarer allele to one less than
    this; then no cohort uses it. 0: none."""


PEOPLE_PER_PARTNER = (
    5  # that a cohort has, for each marker or variant whose pairs with one it tells
)

#: Limits that are about markers, with their defaults.
OF_MARKERS = {key: Limits.model_fields[key].default for key in ("people", "directions", "carriers")}


class WholeGenome(_Choice):
    """Every test takes along what all other chromosomes' markers predict of the trait (REGENIE's
    idea, by sums). Needs principal components among the covariates."""

    use: bool = True
    """Whether to take the rest of the genome into account; false: as if the table was not there."""
    block: int = Field(default=0, ge=0, le=400)
    """Most markers in a block. 0: 200, below 10,000 people 400."""
    folds: int = Field(default=5, ge=2, le=20)
    """Parts of each cohort's people; a prediction is made without the trait of its own part."""
    heritability: float = Field(default=0.5, gt=0, lt=1)
    """Taken in the penalty of blocks."""
    stacked: tuple[float, ...] = Field(default=(0.01, 0.25, 0.5, 0.75, 0.99), min_length=1)
    """Heritabilities among which cross-validation chooses the penalty of what is made of blocks."""
    maf: float = Field(default=0.01, ge=0, lt=0.5)
    """Least frequency of a marker's minor allele."""
    components_elsewhere: bool = False
    """The covariates hold principal components under names other than PC1, PC2 and so on, or none
    are needed: without them tests are inflated."""
    bits: Literal[32, 64] = 64
    """Of the products of markers in masked sums; 32 change -log10 p by at most 0.001."""
    people: int = Field(default=1000, ge=0)
    """Fewest people, all cohorts together."""
    own_people: int = Field(default=200, ge=0)
    """Fewest people of a cohort, and fewest of all in a fold."""
    carriers: int = Field(default=50, ge=0)
    """Fewest copies of a marker's rarer allele in every cohort; other markers are not used."""
    people_per_marker: float = Field(default=5.0, ge=0)
    """Fewest people, all together, per marker of a block; of a cohort a fifth of it."""
    people_per_prediction: float = Field(default=25.0, ge=0)
    """Fewest people, all together, per block."""

    def size(self, people: int) -> int:
        """The most markers in a block of a study of so many people."""
        return self.block or (200 if people >= 10_000 else 400)

    def objection(self, people: int) -> str | None:
        """Why so many people, of all cohorts, are too few."""
        block = self.size(people)
        least = {
            f"whole_genome.people = {self.people}": self.people,
            f"whole_genome.people_per_marker = {self.people_per_marker:g}, in blocks of "
            f"{block}": self.people_per_marker * block,
            f"whole_genome.own_people = {self.own_people}, in each of {self.folds} folds":
                self.own_people * self.folds,
        }  # fmt: skip
        why, most = max(least.items(), key=lambda item: item[1])
        if people >= most:
            return None
        return (
            f"{people:,} people are tested, but whole-genome regression needs {most:,.0f} ({why}): "
            "with fewer, products of markers could tell single genotypes; leave it out, or take "
            "smaller blocks"
        )

    @field_validator("stacked")
    @classmethod
    def _shares(cls, stacked: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < share < 1 for share in stacked):
            raise ValueError("heritabilities lie between 0 and 1")
        return stacked


class Clump(_Choice):
    """Which hits belong together, as PLINK 1.9's --clump says it."""

    p1: float = Field(default=1e-4, gt=0, lt=1)
    """A clump begins with a variant of at most this p (--clump-p1)."""
    p2: float = Field(default=1e-2, gt=0, lt=1)
    """Others in it have at most this p (--clump-p2)."""
    r2: float = Field(default=0.5, gt=0, le=1)
    """And at least this r^2 with the first (--clump-r2)."""
    kb: float = Field(default=250, gt=0, le=1000)
    """And are at most so many kilobases from it (--clump-kb)."""

    @model_validator(mode="after")
    def _in_order(self) -> Clump:
        if self.p1 > self.p2:
            raise ValueError(f"clump.p1 = {self.p1:g} is larger than clump.p2 = {self.p2:g}")
        return self


class Study(_Choice):
    """The statistical side of a study: what every cohort is asked."""

    test: Literal["chi-square", "linear", "logistic", "mixed"] | None
    """PLINK: --assoc, --linear, --logistic. mixed: a linear mixed model (BOLT: --lmmInfOnly)."""
    trait: Trait = Trait()
    """What is studied, below."""
    covariates: tuple[str, ...] = ()
    """Columns of the .cov files (linear, logistic, mixed)."""
    sex: bool = False
    """Also the .fam files' sex as a covariate (PLINK: --sex)."""
    sex_on_x: bool = True
    """On chromosome X sex is a covariate by itself, as PLINK has it; false if it is one anyway."""
    ambiguous_sex: bool = False
    """Keep the trait of people of unknown sex (PLINK: --allow-no-sex)."""
    trend: bool = False
    """With chi-square: also the Cochran-Armitage trend test."""
    covariate_rows: bool = False
    """Keep the covariates' coefficients of every variant, too."""
    quality: Quality = Quality()
    """Filters, below."""
    newton: Newton = Newton()
    """How logistic regression is solved, below."""
    mixed: Mixed = Mixed()
    """The mixed model, below."""
    score: Score = Score()
    """A score test first (logistic), below."""
    vif: float = Field(default=50.0, gt=1)
    """Variance inflation beyond which columns count as collinear, as PLINK's --vif."""
    people_per_column: int = Field(default=20, ge=0)
    """Fewest tested people per column of a regression; a study with fewer is refused."""
    limits: Limits = Limits()
    """What totals may tell about single people, below."""
    whole_genome: WholeGenome | None = None
    """Take the rest of the genome into account: a table `[whole_genome]`, below."""
    one_sided: bool = False
    """Whether a cohort without cases or without controls may take part."""
    largest: float = Field(default=1e6, gt=0)
    """No covariate or quantitative trait is larger than this; masked sums need a bound."""
    rare: int = Field(default=5, ge=0)
    """No cohort puts a variant on the list that has fewer copies of its rarer allele with it."""
    least_cohorts: int | None = Field(default=None, ge=1)
    """A variant is tested if it is in at least so many cohorts; all without it. Under masked sums
    differences of totals must tell of at least sum.minimum cohorts."""
    chunk: int = Field(default=4096, ge=8, le=1 << 17)
    """Variants in one question."""
    heterogeneity: bool = False
    """Also Cochran's Q and I^2 between cohorts, from sums of their own effects."""
    clump: Clump | None = None
    """Put linked hits together, below; `clump = {}` does it as PLINK does by default."""
    fingerprints: bool = True
    """Look for people in more than one cohort, by hashes under a salt that cohorts share."""
    shared: Literal["warn", "stop"] = "warn"
    """What happens if cohorts share people: a warning, or the study stops before any genotype is
    counted; both with the number for each pair of cohorts."""
    dosages: bool = False
    """Genotypes are expected copies of an allele (imputed: .pgen, BGEN, VCF), not hard calls;
    linear and logistic, autosomes."""

    components: Components | None = None
    """Principal components of all people, below; as covariates by name (PC1-10)."""

    @model_validator(mode="after")
    def _of_dosages(self) -> Study:
        if not self.dosages:
            if self.quality.info:
                raise ValueError("quality.info is about dosages: say dosages = true, or drop it")
            return self
        if not self.regression:
            raise ValueError(
                "dosages = true: a chi-square test counts alleles, and dosages are no counts; use "
                "test = 'logistic' (or 'linear'), or hard calls (`plink2 --make-bed`)"
            )
        if self.test == "mixed":
            raise ValueError(
                "dosages = true: the mixed model takes its markers from hard calls; use "
                "test = 'linear' with principal components, or hard calls (`plink2 --make-bed`)"
            )
        if self.quality.hardy_weinberg:
            raise ValueError(
                "dosages = true: Hardy-Weinberg equilibrium is tested in hard calls; leave "
                "quality.hardy_weinberg out (quality.info filters badly imputed variants)"
            )
        if self.components is not None:
            raise ValueError(
                "dosages = true: components are computed from hard calls; leave [components] out, "
                "and name columns of the .cov files as covariates"
            )
        if self.quality.kinship < 1:
            raise ValueError(
                "dosages = true: kinship is computed from hard calls; leave quality.kinship out; "
                "each cohort can keep a list of people without relatives (keep)"
            )
        return self

    @property
    def binary(self) -> bool | None:
        """Whether the trait is binary, if that is stated. Without a test there is no trait."""
        if self.test is None:
            return False
        return None if self.trait.kind == "auto" else self.trait.kind == "binary"

    @property
    def regression(self) -> bool:
        return self.test not in ("chi-square", None)

    @property
    def named(self) -> tuple[str, ...]:
        """Covariates that the study names, one by one: PC1-10 is ten."""
        return tuple(name for one in self.covariates for name in expanded(one))

    @property
    def scores(self) -> tuple[str, ...]:
        """Those of them that are components of this study."""
        known = () if self.components is None else self.components.names
        return tuple(name for name in self.named if name in known)

    @property
    def own_covariates(self) -> tuple[str, ...]:
        """Those of them that stand in the .cov files."""
        return tuple(name for name in self.named if name not in self.scores)

    @property
    def quantitative(self) -> bool:
        """Whether the test is of a quantitative trait."""
        return self.test in ("linear", "mixed")

    @property
    def scored(self) -> bool:
        """Whether a score test decides which variants go on."""
        return self.score != Score()

    @property
    def columns(self) -> list[str]:
        """Covariates, by name, in the order of their columns."""
        if not self.regression:
            return []
        return [*self.own_covariates, *(["SEX"] if self.sex else []), *self.scores]

    @property
    def limits_told(self) -> dict[str, Any]:
        """The limits that this study has."""
        of_markers = self.components is not None or self.test == "mixed"
        others = set() if of_markers else {*OF_MARKERS}
        return self.limits.model_dump(exclude=others)

    @property
    def before_variants(self) -> tuple[str, ...]:
        """Phases between people and the list of variants."""
        return ("standardise",) if self.regression and not self.scores else ()

    @property
    def after_variants(self) -> tuple[str, ...]:
        """Phases between the list of variants and their counts."""
        groups = ("groups",) if self.least_cohorts is not None else ()
        return (*groups, *(("fingerprints",) if self.fingerprints else ()))

    @property
    def parts(self) -> tuple[str, ...]:
        """Phases after the counts, in their order."""
        found = ["quality report"] if self.quality.report else []
        found += [] if self.components is None else ["components"]
        found += ["standardise"] if self.scores else []
        found += ["whole-genome"] if self.whole_genome else []
        if self.test == "mixed":
            found += ["mixed", "mixed test"]
        elif self.scored:
            found += ["score", "saddle" if self.score.then == "saddle-point" else "test"]
        elif self.regression:
            found += ["test"]
        found += ["heterogeneity"] if self.heterogeneity else []
        return (*found, *(("clump",) if self.clump else ()))

    @field_validator("whole_genome")
    @classmethod
    def _used(cls, whole: WholeGenome | None) -> WholeGenome | None:
        return whole if whole is not None and whole.use else None

    @model_validator(mode="after")
    def _beside_components(self) -> Study:
        """Whole-genome regression without components is inflated where families are."""
        whole = self.whole_genome
        if whole is None:
            return self
        if self.test not in ("linear", "logistic"):
            raise ValueError("whole_genome: goes with test = 'linear' or 'logistic'")
        if self.dosages:
            raise ValueError(
                "whole_genome: markers are hard calls so far; leave dosages out, or use components"
            )
        named = any(COMPONENT.fullmatch(name) for name in self.covariates)
        if not (named or whole.components_elsewhere):
            raise ValueError(
                "whole_genome: needs principal components among the covariates (PC1-10; of the "
                ".cov files, or of the study: a table [components]); without them tests are "
                "inflated. If they have other names, say so: "
                "whole_genome.components_elsewhere = true"
            )
        return self
