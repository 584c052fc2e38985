"""A study: which cohorts, which test, how sums are made; a plan of the kind 'association'."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from cupola.analysis.explain import explain
from cupola.analysis.folder_lock import read_lines
from cupola.analysis.header import Engine, PlanHeader, Track, folder_word, is_elsewhere
from cupola.analysis.plan_file import load
from cupola.association.cohort import Files, Wanted
from cupola.association.output_choices import About, TableKind, with_old_keys
from cupola.association.study_choices import OF_MARKERS, Study
from cupola.errors import PlanError
from cupola.secure.sum_choice import Sum

#: Keys that name a cohort's genotypes, people and variants at once.
GENOTYPES = ("bfile", "pfile", "bgen", "vcf")


class CohortFiles(BaseModel):
    """Where a cohort's data are; names are taken from the study file's folder. Real cohorts say it
    in settings of their own: of a study's words about them they use the name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,60}$")
    """What the report calls it."""
    bfile: str | None = None
    """Name of .bed, .bim and .fam without the ending."""
    bed: str | None = None
    """Genotypes, in place of bfile's."""
    pfile: str | None = None
    """Name of .pgen, .pvar and .psam without the ending, in place of bfile."""
    bgen: str | None = None
    """A BGEN file with imputed genotypes, in place of bfile; its people stand in the .sample file
    of the same name, or in `fam`."""
    vcf: str | None = None
    """A VCF file (text or gzip) with dosages, in place of bfile; `fam` tells its people's sex."""
    bim: str | None = None
    """Variants, in place of bfile's (.bim or .pvar)."""
    fam: str | None = None
    """People, in place of bfile's (.fam, .psam or .sample)."""
    pheno: str | None = None
    """Traits: a line 'FID IID name ...', then a line a person."""
    cov: str | None = None
    """Covariates, the same layout."""
    keep: str | None = None
    """People of the .fam file who take part (FID IID); everybody without it."""
    may_leave: bool = False
    """Agrees beforehand that the study goes on without it after totals were told: the difference
    of two totals is then its own numbers."""

    @model_validator(mode="after")
    def _complete(self, info: ValidationInfo) -> CohortFiles:
        missing = [n for n in ("bed", "bim", "fam") if getattr(self, n) is None]
        given = [n for n in GENOTYPES if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(
                f"cohort '{self.name}' names {' and '.join(given)}: which of them holds its "
                "genotypes?"
            )
        if not given and missing and not is_elsewhere(info):
            raise ValueError(
                f"cohort '{self.name}' needs bfile (or bed, bim and fam), pfile, bgen or vcf"
            )
        return self

    def files(self, base: Path) -> Files:
        def path(given: str | None) -> Path | None:
            return None if given is None else base / given

        usual = tuple(f"{self.bfile}.{ending}" for ending in ("bed", "bim", "fam"))
        if self.pfile is not None:
            usual = tuple(f"{self.pfile}.{ending}" for ending in ("pgen", "pvar", "psam"))
        elif self.bgen is not None:
            usual = (self.bgen, self.bgen, f"{self.bgen.removesuffix('.bgen')}.sample")
        elif self.vcf is not None:
            usual = (self.vcf, self.vcf, self.vcf)
        bed, bim, fam = (
            base / (own or name) for own, name in zip((self.bed, self.bim, self.fam), usual)
        )
        tables = (path(self.pheno), path(self.cov), path(self.keep))
        return Files(self.name, bed, bim, fam, *tables)

    @property
    def known(self) -> bool:
        """Whether it says where its genotypes are."""
        return any(getattr(self, name) is not None for name in (*GENOTYPES, "bed"))


class StudyPlan(PlanHeader, Study):
    """All of a study."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    own_affair: ClassVar[tuple[str, ...]] = (
        "engine", "track", "checkpoint_seconds", "folder", "salt", "cohorts",
    )  # fmt: skip
    later: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "dosages": False,
            "quality.info": 0.0,
            "trait.columns": [],
            "tables": ["plink"],
            "about": About().model_dump(mode="json", exclude_none=True),
            **{f"limits.{key}": default for key, default in OF_MARKERS.items()},
        }
    )

    kind: Literal["association"] = "association"
    """Of the analysis."""
    test: Literal["chi-square", "linear", "logistic", "mixed"]
    """PLINK: --assoc, --linear, --logistic. mixed: a linear mixed model (BOLT: --lmmInfOnly)."""
    name: str = Field(default="study", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,80}$")
    """Of the study; the file's name without it."""
    seed: int = 1
    """Of what is drawn in the simulation: keys, and the order of fingerprints."""
    cohorts: tuple[CohortFiles, ...]
    """Who takes part, below."""
    variants: str | None = None
    """A public .bim file to compare with. Without it cohorts propose the list, one after another
    what is common with them and not on it yet."""
    variants_hash: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the public list, as `cupola gwas list` prints it; real cohorts take no other."""
    salt: str | None = None
    """For fingerprints: what real cohorts share, and do not tell the coordinator (each in its own
    settings). A simulation without it draws one from the seed."""
    sum: Sum = Field(default_factory=Sum)
    """'plain' or 'masked', or a table with kind, protocol and minimum, as in plans."""
    engine: Engine = Engine(quorum=1.0)
    """How cohorts are reached, as in plans. workers: cohorts that compute at the same time.
    timeout: seconds that a real cohort has for an answer before it is asked again."""
    track: Track | None = None
    """Also write what is measured to MLflow or Weights & Biases, as in plans."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Of the confidence intervals."""
    tables: tuple[TableKind, ...] = ("plink",)
    """What is written: plink (always), ssf (GWAS-SSF with its metadata), regenie (its columns),
    ldsc (what munge_sumstats takes), parquet (unrounded)."""
    about: About = About()
    """For the metadata of GWAS-SSF, below."""
    checkpoint_seconds: float = Field(default=10.0, ge=0)
    """At most so much work is lost in a crash."""
    folder: str = "."
    """What file names are relative to; the study file's folder if it comes from a file."""

    @classmethod
    def with_defaults(cls, given: Any) -> Any:
        """Every total is of all cohorts. 'workers' and 'timeout' stood beside the engine once, and
        tables had keys of their own."""
        if not isinstance(given, dict):
            return given
        given = with_old_keys(given)
        engine = given.get("engine", {})
        if not isinstance(engine, dict):
            return given
        moved = {key: given[key] for key in ("workers", "timeout") if key in given}
        rest = {key: value for key, value in given.items() if key not in moved}
        return {**rest, "engine": {"quorum": 1.0, **moved, **engine}}

    @model_validator(mode="after")
    def _possible(self) -> StudyPlan:
        names = [cohort.name for cohort in self.cohorts]
        if not names:
            raise ValueError("cohorts: name at least one ([[cohorts]])")
        if len(set(names)) < len(names):
            raise ValueError("cohorts: two have the same name")
        if twice := [name for name in self.named if self.named.count(name) > 1]:
            raise ValueError(f"covariates: '{twice[0]}' stands there twice: nothing could be told")
        if self.sum.changes:
            raise ValueError("sum.changes: every total of a study is of all its cohorts")
        if self.engine.quorum != 1:
            raise ValueError("engine.quorum: every total of a study is of all its cohorts")
        if self.engine.kind == "ray":
            raise ValueError(
                "engine.kind = 'ray': a cohort remembers what it was asked, in one place; use "
                "'in-process', or 'processes' for trials"
            )
        if self.sum.masked and len(names) < self.sum.minimum:
            raise ValueError(
                f"sum.minimum = {self.sum.minimum}, but there are {len(names)} cohorts: "
                "no masked sum can be told"
            )
        if self.heterogeneity and self.test == "mixed":
            raise ValueError("heterogeneity: cohorts fit no mixed model of their own")
        if self.heterogeneity and len(names) < 2:
            raise ValueError("heterogeneity is between cohorts: there is one")
        if self.quality.unknown_strand == "frequency" and self.variants is None:
            raise ValueError(
                "quality.unknown_strand = 'frequency' compares cohorts with a public list that has "
                "frequencies: name one (variants = 'public.bim', beside it public.afreq of plink2 "
                "--freq), or say 'drop'"
            )
        if problem := self._too_few_cohorts(len(names)):
            raise ValueError(problem)
        return self

    def _too_few_cohorts(self, sites: int) -> str:
        """Why variants cannot be tested in fewer cohorts than all, as the study has it."""
        least, fewest = self.least_cohorts, self.sum.minimum
        if least is None or least == sites or (least < sites and not self.sum.masked):
            return ""
        if least > sites:
            return f"least_cohorts = {least}, but there are {sites} cohorts"
        if least < fewest:
            return (
                f"least_cohorts = {least}: masked totals are of at least {fewest} cohorts "
                f"(sum.minimum); set it to {fewest} or more"
            )
        if least > sites - fewest:
            return (
                f"least_cohorts = {least} of {sites}: fewer than sum.minimum = {fewest} cohorts "
                "could lack a variant, and their own numbers would be the difference of two "
                f"totals. A variant must be in all cohorts, or in {fewest} to {sites - fewest} of "
                f"at least {2 * fewest}: leave least_cohorts out"
            )
        return ""

    @property
    def apart(self) -> int:
        """The fewest cohorts of which differences of totals may tell."""
        return self.sum.minimum if self.sum.masked else 1

    @property
    def wanted(self) -> Wanted:
        regression = self.regression
        return Wanted(
            self.trait.column,
            self.own_covariates if regression else (),
            self.sex and regression,
            self.ambiguous_sex,
            self.quality.person_missing,
            self.quality.kinship,
            self.dosages,
            self.trait.columns,
            self.limits.least_cell,
            traitless=self.test is None,
            scores=self.scores if regression else (),
            founders=self.quality.founders and not self.trend,
        )

    @property
    def many(self) -> bool:
        """Whether it stands for many runs: seeds, a grid, several traits."""
        return super().many or (bool(self.trait.columns) and self.trait.column is None)

    def settings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Label and settings of every run, traits innermost."""
        several = self.trait.columns if self.trait.column is None else ()
        for label, chosen in super().settings():
            if not several:
                yield label, chosen
            for place, column in enumerate(several):
                word = re.sub(r"[^A-Za-z0-9._-]+", "_", folder_word(column, place))
                one = f"{label},trait={word}" if label else f"trait={word}"
                facts = {"trait.column": column, "name": f"{self.name}.{word}"}  # of its tables
                yield one, {**chosen, **facts}

    def to_dict(self, *, lasting: bool = False) -> dict[str, Any]:
        """lasting: tables had keys of their own, and runs under way are known by them."""
        found = super().to_dict(lasting=lasting)
        if self.many:  # else the folder of the file that it is kept in
            return {**found, "folder": self.folder}
        if not lasting:
            return found
        facts = list(found.items())
        after = list(found).index("confidence") + 1
        return dict([*facts[:after], *self.old_table_keys.items(), *facts[after:]])

    @property
    def old_table_keys(self) -> dict[str, bool]:
        return {key: key in self.tables for key in ("ssf", "parquet")}

    def study(self) -> Study:
        """The part that the program knows."""
        return Study(**{name: getattr(self, name) for name in Study.model_fields})


def for_real_cohorts(study: StudyPlan) -> StudyPlan:
    """The study as it may leave whoever wrote it: without names of files, and without the salt."""
    names = [{"name": c.name, "may_leave": c.may_leave} for c in study.cohorts]
    told = {**study.to_dict(), "cohorts": names, "salt": None, "folder": "."}
    return load(told, of=type(study), elsewhere=True)


def without(study: StudyPlan, leaving: Iterable[str]) -> StudyPlan:
    """The study of the other cohorts."""
    names = [cohort.name for cohort in study.cohorts]
    if unknown := [name for name in leaving if name not in names]:
        raise PlanError(f"no cohort is named '{unknown[0]}'; there are: {', '.join(names)}")
    left = tuple(cohort for cohort in study.cohorts if cohort.name not in set(leaving))
    try:
        return type(study).model_validate({**study.to_dict(), "cohorts": left})
    except ValidationError as error:
        raise PlanError("\n".join(explain(error, "study", (), type(study)))) from None


def leave(plan: StudyPlan, folder: Path, leaving: Iterable[str]) -> StudyPlan:
    """The study of the other cohorts. After a total was told only those may leave that agreed to it
    beforehand (may_leave): the difference of two totals is their own numbers."""
    leaving = list(leaving)
    left = without(plan, leaving)
    path = folder / "ledger.jsonl"
    told = path.exists() and any(
        entry["kind"] == "sum" and entry["sites"] and not entry["failed"]
        for entry in read_lines(path)
    )
    against = [c.name for c in plan.cohorts if c.name in leaving and not c.may_leave]
    if told and against:
        raise PlanError(
            f"cohort '{against[0]}' has not agreed that the study goes on without it (may_leave), "
            "and totals with it were told: the difference would be its own numbers. Wait for it "
            "and resume, or begin a new study that its totals are not compared with"
        )
    return left
