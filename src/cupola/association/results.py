"""What a finished study found, as columns: one row a variant, in the order of a public list, or of
the genome where several cohorts made the list."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from cupola.association import chi_square, fit, heterogeneity, pvalues
from cupola.association.agreed_variants import cohorts_with
from cupola.association.agreement import KEPT, places
from cupola.association.bed import stretch
from cupola.association.design import SEX_X, kinds
from cupola.association.files import Variants
from cupola.association.quality import (
    frequency,
    imputation_quality,
    major_is_a1,
    pooled,
    unrounded,
)
from cupola.association.saddle_point import SaddlePoint, log_p
from cupola.association.study_program import Association
from cupola.federation.program import State


@dataclass(frozen=True)
class Coefficient:
    """A covariate's coefficient at every variant; shown: where it is in the model at all."""

    name: str
    beta: np.ndarray
    error: np.ndarray
    shown: np.ndarray


@dataclass(frozen=True)
class Results:
    """Tested variants; a1 is the minor allele over all people, and every number is about it.

    rows: of the list. columns: arrays by name; chi-square: F_A, F_U, C_A, C_U (alleles: a1 in
    cases and controls), CHISQ, P, OR, SE; trend: T_CHISQ, T_P; regression: NMISS, BETA, SE, STAT, P
    of the genotype. covariates: where the study keeps them. cohorts: in how many each variant is,
    if some lack any.
    """

    variants: Variants
    rows: np.ndarray
    frequency: np.ndarray
    observed: np.ndarray
    status: np.ndarray
    columns: dict[str, np.ndarray]
    covariates: list[Coefficient]
    genotypes: np.ndarray | None
    cohorts: np.ndarray | None = None

    @property
    def statistic(self) -> np.ndarray:
        """Chi-square with one degree of freedom, or its like: the square of z or t."""
        told = self.columns
        return told["CHISQ"] if "CHISQ" in told else told["STAT"] ** 2

    @property
    def effect(self) -> np.ndarray:
        """Of a copy of A1: on the trait, or on the log odds."""
        if "BETA" in self.columns:
            return self.columns["BETA"]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(self.columns["OR"])

    @property
    def log10_p(self) -> np.ndarray:
        return self.columns["LOG10P"]


def results(program: Association, state: State) -> Results:
    """The results of a finished study."""
    kept = np.flatnonzero(state.arrays["reason"] == KEPT)
    index = stretch(kept)
    listed = program.variants(state)[index]
    alleles = unrounded(state.arrays["alleles"][index])
    swap = major_is_a1(alleles)
    variants = Variants(
        listed.chromosome,
        listed.position,
        listed.name,
        listed.a2.where(swap, listed.a1),
        listed.a1.where(swap, listed.a2),
    )
    rate, squares = frequency(alleles), state.arrays.get("squares")
    info = None if squares is None else imputation_quality(alleles, squares[index])
    alleles[swap, :, 0] = alleles[swap, :, 1] - alleles[swap, :, 0]
    genotypes = state.arrays.get("genotypes")
    if genotypes is not None:
        genotypes = genotypes[index].astype(np.int64)
        genotypes[swap] = genotypes[swap][..., ::-1]
    covariates: list[Coefficient] = []
    if program.study.regression:
        columns, status, covariates = _regression(program, state, kept, swap)
        if info is not None:
            columns["INFO"] = info
    else:
        columns, status = chi_square.allelic(alleles)
        if program.study.trend and genotypes is not None:
            columns |= chi_square.trend(genotypes)
    if program.study.heterogeneity:
        columns |= heterogeneity.columns(program, state, kept)
    cohorts = cohorts_with(state)
    found = Results(
        variants,
        kept,
        np.where(swap, 1 - rate, rate),
        pooled(alleles)[1],
        status,
        columns,
        covariates,
        genotypes,
        None if cohorts is None else cohorts[index],
    )
    several = sum(count > 0 for count in state.values["proposed"]) > 1
    return _along_the_genome(found) if several else found


_BY_ROW = ("variants", "rows", "frequency", "observed", "status")


def _along_the_genome(found: Results) -> Results:
    """Cohorts put variants on the list one after another; a table has one order."""
    order = np.argsort(places(found.variants), kind="stable")
    covariates = [
        Coefficient(c.name, c.beta[order], c.error[order], c.shown[order]) for c in found.covariates
    ]
    arrays = {n: getattr(found, n)[order] for n in _BY_ROW}
    return Results(
        **arrays,
        columns={name: column[order] for name, column in found.columns.items()},
        covariates=covariates,
        genotypes=None if found.genotypes is None else found.genotypes[order],
        cohorts=None if found.cohorts is None else found.cohorts[order],
    )


def _regression(
    program: Association, state: State, kept: np.ndarray, swap: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, list[Coefficient]]:
    names = program.columns(SEX_X) if program.study.covariate_rows else []
    rows, m = 1 + len(names), len(kept)
    people, status = np.zeros(m), np.zeros(m, np.uint8)
    beta, error = np.full((m, rows), np.nan), np.full((m, rows), np.nan)
    kind = kinds(program.variants(state).chromosome[kept])
    columns = np.array([2.0 + len(program.columns(k)) for k in range(4)])[kind]
    if program.study.scored:
        score = state.arrays["score"][kept]
        people, status = score[:, 0].copy(), score[:, 1].astype(np.uint8)
        beta[:, 0], error[:, 0] = score[:, 2], score[:, 3]
    for i, chunk in enumerate(program.chunks(state) if "test/0" in state.arrays else ()):
        # Chunks of several kinds in one stretch are not in the order of the list.
        at, table = np.searchsorted(kept, chunk.index), state.arrays[f"test/{i}"]
        shown = (table.shape[1] - 2) // 2
        people[at], status[at] = table[:, 0], table[:, 1]
        beta[at, :shown], error[at, :shown] = table[:, 2 : 2 + shown], table[:, 2 + shown :]
    if "saddle/0" in state.arrays:  # a standard error that says the same as p
        told = _saddle_points(program, state, kept, status)
        fine = np.isfinite(told)
        error[fine, 0] = np.abs(beta[fine, 0] / special.ndtri_exp(told[fine] - np.log(2)))
        beta[status == fit.WITHHELD, 0] = np.nan
    beta[swap, 0] *= -1
    statistic = beta[:, 0] / error[:, 0]
    freedom = people - columns
    if program.study.test == "linear":
        p, log = pvalues.student(statistic, freedom), pvalues.log10_student(statistic, freedom)
    else:
        p, log = pvalues.normal(statistic), pvalues.log10_normal(statistic)
    found: dict[str, np.ndarray] = {
        "NMISS": people, "BETA": beta[:, 0], "SE": error[:, 0], "STAT": statistic, "P": p,
        "LOG10P": log, "FREEDOM": freedom,
    }  # fmt: skip
    if program.study.scored:
        found["METHOD"] = np.array(fit.METHODS)[status]
    rest = [
        Coefficient(name, beta[:, i + 1], error[:, i + 1], columns > i + 2)
        for i, name in enumerate(names)
    ]
    return found, status, rest


def _saddle_points(
    program: Association, state: State, kept: np.ndarray, status: np.ndarray
) -> np.ndarray:
    """The logarithm of p by a saddle point, NaN where there is none; status is put right."""
    found = np.full(len(kept), np.nan)
    part = {**state.values, "phase": "saddle"}
    for i, chunk in enumerate(program.chunks(state)):
        step = SaddlePoint(program, State(state.step, state.arrays, {**part, "at": i}))
        at, table = np.searchsorted(kept, chunk.index), state.arrays[f"saddle/{i}"]
        status[at] = table[:, 0]
        p = log_p(step.goal[:, 0], table)
        found[at] = np.where(table[:, 0] == fit.SADDLE, p, np.nan)
    return found


def inflation(found: Results) -> float:
    """Genomic inflation factor over the autosomes."""
    autosomes = kinds(found.variants.chromosome) == 0
    return pvalues.inflation(found.statistic[autosomes])
