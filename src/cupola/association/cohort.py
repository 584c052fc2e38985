"""One cohort: who is in it, with trait, covariates and sex, and its genotypes.

People are loaded as PLINK loads them: the .fam file (after `keep` and person missingness) decides
who exists; a trait or covariate that is missing takes a person out of the test, not out of the
allele counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from cupola.association.files import (
    CohortError,
    People,
    Variants,
    fam_trait,
    numbers,
    read_columns,
    read_keep,
    read_people,
    read_table,
    read_variants,
    require_column,
)
from cupola.association.genotypes import (
    Genotypes,
    missing_by_person,
    no_hard_calls,
    open_genotypes,
    require_hard_calls,
)
from cupola.association.people_files import is_table_of_people


@dataclass(frozen=True)
class Wanted:
    """What a study wants of every cohort.

    trait: a column of the .pheno file, or None for the .fam file's. covariates: columns of the .cov
    file. sex: also the .fam file's sex, as PLINK's --sex. ambiguous_sex: whether people of unknown
    sex keep their trait (--allow-no-sex). mind: the most calls a person may miss. kinship: of two
    people at least so much related one is left out. dosages: whether genotypes are read as dosages.
    traits: all that are studied in these people, each by itself. least_cell: of the study's limits.
    traitless: whether the study has no trait. scores: covariates that the study itself makes.
    founders: whether genotypes are counted in founders only.
    """

    trait: str | None = None
    covariates: tuple[str, ...] = ()
    sex: bool = False
    ambiguous_sex: bool = False
    mind: float = 1.0
    kinship: float = 1.0
    dosages: bool = False
    traits: tuple[str, ...] = ()
    least_cell: int = 0
    traitless: bool = False
    scores: tuple[str, ...] = ()
    founders: bool = False


@dataclass(frozen=True)
class Files:
    """Where a cohort's data are."""

    name: str
    bed: Path
    bim: Path
    fam: Path
    pheno: Path | None = None
    cov: Path | None = None
    keep: Path | None = None


@dataclass(frozen=True)
class Cohort:
    """Data of one cohort; arrays over the people of the .fam file.

    loaded: who counts at all. male, female: by .fam. trait: NaN where missing, as read (0 is
    missing if the trait turns out to be binary). covariates: (people, c), NaN where missing.
    relatives: a table of pairs, if the study leaves relatives out. few_alike: people whose traits
    would tell them apart (see `trait_patterns`). child: who has a parent, if the .fam file says.
    """

    files: Files
    wanted: Wanted
    variants: Variants
    bed: Genotypes
    person: list[str]
    loaded: np.ndarray
    male: np.ndarray
    female: np.ndarray
    trait: np.ndarray
    covariates: np.ndarray
    relatives: bytes | None = None
    few_alike: bytes | None = None
    child: np.ndarray | None = None

    @property
    def trait_file(self) -> Path:
        return _source(self.files, self.wanted)

    def source(self, person: int, column: int) -> tuple[str, str]:
        """File and line of a person's covariate, or of the trait, which comes after them; and its
        name. For messages: the file is read again."""
        names = [*self.wanted.covariates, *(["sex"] if self.wanted.sex else [])]
        names += self.wanted.scores
        name = (names[column : column + 1] or [self.wanted.trait or "trait"])[0]
        path = self.files.cov if column < len(self.wanted.covariates) else self.trait_file
        if path in (None, self.files.fam) or name == "sex":
            first = read_people(self.files.fam).first
            lines = {p: i + first for i, p in enumerate(self.person)}
            return f"{self.files.fam}, line {lines[self.person[person]]}", name
        assert path is not None
        table = read_table(path, "cov" if path == self.files.cov else "pheno")
        return f"{path}, line {table.lines[self.person[person]]}", name

    @cached_property
    def looks_binary(self) -> bool:
        """As PLINK deduces: no value but 1, 2, 0 and missing."""
        told = self.trait[self.loaded & ~np.isnan(self.trait)]
        return bool(np.isin(told, (0.0, 1.0, 2.0)).all())

    def traits(self, binary: bool) -> np.ndarray:
        """The trait of everybody: 0 and 1 if binary (control, case), NaN where missing."""
        if not binary:
            return np.where(self.loaded, self.trait, np.nan)
        wrong = self.loaded & ~np.isnan(self.trait) & ~np.isin(self.trait, (0.0, 1.0, 2.0))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            where, name = self.source(first, self.covariates.shape[1])
            raise CohortError(
                "trait-not-binary",
                where,
                f"{name} = {self.trait[first]:g}: cases are 2, controls 1, missing 0 or -9",
            )
        told = self.loaded & np.isin(self.trait, (1.0, 2.0))
        return np.where(told, self.trait - 1, np.nan)

    def tested(self, binary: bool, with_covariates: bool) -> np.ndarray:
        """Who takes part in the test."""
        told = ~np.isnan(self.traits(binary))
        if with_covariates and self.covariates.shape[1]:
            told &= ~np.isnan(self.covariates).any(axis=1)
        return told


def open_cohort(files: Files, wanted: Wanted) -> Cohort:
    """Read and check everything but the calls themselves."""
    people = read_people(files.fam)
    variants = read_variants(files.bim)
    bed = open_genotypes(files.bed, people.person, len(variants))
    if bed.imputed and not wanted.dosages:
        raise no_hard_calls(files.bed)
    loaded = np.ones(len(people), bool)
    if files.keep is not None:
        keep = read_keep(files.keep)
        loaded = np.array([person in keep for person in people.person])
        if not loaded.any():
            raise CohortError("keep-nobody", str(files.keep), f"names nobody of {files.fam}")
    if wanted.mind < 1:
        from cupola.association import kernels

        missing = missing_by_person(bed) if wanted.dosages else kernels.missing_by_person(bed)
        share = missing / len(variants)
        loaded &= share <= wanted.mind
        if not loaded.any():
            raise CohortError("mind-nobody", str(files.bed), "nobody has enough calls")
    relatives = None
    if wanted.kinship < 1:
        from cupola.association.relatives import as_lines, left_out, related

        pairs = related(bed, variants, np.flatnonzero(loaded), wanted.kinship)
        gone = left_out(pairs)
        loaded[gone] = False
        relatives = as_lines(pairs, people.person, gone)
    if wanted.traitless:
        trait = np.full(len(people), np.nan)
    elif wanted.trait is None:
        trait = fam_trait(people, files.fam)
    else:
        trait = _numbers(files, wanted, "pheno", people.person, (wanted.trait,))[0]
    sexless = not (people.sex > 0).any() and not wanted.traitless
    if sexless and not wanted.ambiguous_sex:
        raise CohortError(
            "sex-unknown",
            str(files.fam),
            "tells nobody's sex, and people of unknown sex lose their trait: name a file that does "
            "(fam), or let the study keep them (ambiguous_sex = true)",
        )
    if not wanted.ambiguous_sex:
        trait = np.where(people.sex == 0, np.nan, trait)
    if not wanted.traitless and not (loaded & ~np.isnan(trait)).any():
        raise CohortError("trait-nobody", str(_source(files, wanted)), "nobody has a trait")
    for name in wanted.traits:  # of which this study is about one
        path = _table_file(files, wanted, "pheno")
        require_column(path, read_columns(path, "pheno"), name, "pheno")
    if (twice := _made_twice(files, wanted)) is not None:
        raise twice
    columns = _numbers(files, wanted, "cov", people.person, wanted.covariates)
    if wanted.sex:
        columns.append(np.where(people.sex == 0, np.nan, people.sex == 1))
    covariates = np.stack(columns, axis=1) if columns else np.zeros((len(people), 0))
    few = _few_alike(files, wanted, people, loaded, covariates)
    loaded &= ~few
    if not loaded.any():
        raise CohortError("traits-nobody", str(_source(files, wanted)), "all traits are rare")
    return Cohort(
        files,
        wanted,
        variants,
        bed,
        people.person,
        loaded,
        people.sex == 1,
        people.sex == 2,
        trait,
        covariates,
        relatives,
        _names(people, few) if few.any() else None,
        people.child,
    )


def _few_alike(
    files: Files, wanted: Wanted, people: People, loaded: np.ndarray, covariates: np.ndarray
) -> np.ndarray:
    """Who takes no part, because differences of several traits' totals would tell of few."""
    if len(wanted.traits) < 2 or not wanted.least_cell:
        return np.zeros(len(loaded), bool)
    from cupola.association.trait_patterns import few_alike

    traits = _numbers(files, wanted, "pheno", people.person, wanted.traits)
    sex = people.sex > 0 if not wanted.ambiguous_sex else np.ones(len(loaded), bool)
    whole = ~np.isnan(covariates).any(axis=1)
    return few_alike(traits, np.column_stack([loaded, sex, whole]), wanted.least_cell)


def _names(people: People, chosen: np.ndarray) -> bytes:
    """A table of people for the cohort's own eyes."""
    names = [people.person[i].replace(" ", "\t") for i in np.flatnonzero(chosen)]
    return "\n".join(["FID\tIID", *names, ""]).encode()


def _source(files: Files, wanted: Wanted) -> Path:
    return files.fam if wanted.trait is None or files.pheno is None else files.pheno


def problems(files: Files, wanted: Wanted) -> list[str]:
    """What a cohort lacks of what a study wants, from the first lines of its tables and the form of
    its genotypes: a line for each, for the cohort's own eyes."""
    traits = dict.fromkeys([*([] if wanted.trait is None else [wanted.trait]), *wanted.traits])
    found = []
    for what, names in (("pheno", traits), ("cov", wanted.covariates)):
        for name in names:
            try:
                path = _table_file(files, wanted, what)
                require_column(path, read_columns(path, what), name, what)
            except CohortError as error:
                found.append(str(error))
    found += [] if (twice := _made_twice(files, wanted)) is None else [str(twice)]
    if not wanted.dosages:
        try:
            require_hard_calls(files.bed)
        except CohortError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def _made_twice(files: Files, wanted: Wanted) -> CohortError | None:
    """Of a covariate that the study makes and the cohort's table has as well: which one is meant
    nobody can know."""
    if not wanted.scores or files.cov is None:
        return None
    twice = [name for name in read_columns(files.cov, "cov") if name in wanted.scores]
    if not twice:
        return None
    return CohortError(
        "cov-ambiguous",
        str(files.cov),
        f"has a column {twice[0]}, and the study computes {twice[0]} itself ([components]): rename "
        "the column, or let the study do without [components]",
    )


def _table_file(files: Files, wanted: Wanted, what: str) -> Path:
    """The 'pheno' or the 'cov' file."""
    path = files.pheno if what == "pheno" else files.cov
    if path is None and is_table_of_people(files.fam):
        return files.fam
    if path is None:
        asked = f"trait '{wanted.trait}'" if what == "pheno" else ", ".join(wanted.covariates)
        raise CohortError(
            f"{what}-absent",
            f"cohort '{files.name}'",
            f"the study asks for {asked}, but the cohort names no {what} file",
        )
    return path


def _numbers(
    files: Files, wanted: Wanted, what: str, people: list[str], names: tuple[str, ...]
) -> list[np.ndarray]:
    """Columns of a table, in the order of people."""
    if not names:
        return []
    table = read_table(_table_file(files, wanted, what), what)
    if not any(person in table.lines for person in people):
        raise CohortError(f"{what}-nobody", str(table.path), f"names nobody of {files.fam}")
    return [numbers(table, name, what, people) for name in names]
