"""Result tables with PLINK 1.9's names, columns and digits.

What PLINK has not comes after its columns: standard error, people, frequency of A1, and where a
study allows Firth's penalty, which results are Firth's (PLINK 2's FIRTH?).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from scipy import special

from cupola.association import fit, pvalues
from cupola.association.agreement import KEPT, REASONS
from cupola.association.compare import Table
from cupola.association.text import Column
from cupola.association.texts import Texts

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.results import Results

ENDINGS = {
    "chi-square": ".assoc", "linear": ".assoc.linear", "logistic": ".assoc.logistic",
    "mixed": ".assoc.mixed",
}  # fmt: skip


def normal_quantile(confidence: float) -> float:
    return float(special.ndtri(0.5 + confidence / 2))


def _p(found: Results) -> Column:
    return Column("P", 12, found.columns["P"], log10=found.log10_p)


def _place(v: Variants) -> list[Column]:
    # Letters, not bytes; 0 variants have no name at all.
    longest = v.name.lengths.max(initial=0) if v.name.ascii else max(map(len, v.name))
    return [
        Column("CHR", 4, v.chromosome, 0),
        Column("SNP", max(4, int(longest)), v.name),
        Column("BP", 10, v.position, 0),
        Column("A1", 4, v.a1),
    ]


def _bounds(found: Results, log: np.ndarray, confidence: float) -> list[Column]:
    """Confidence interval of an odds ratio with this logarithm."""
    wide = normal_quantile(confidence) * found.columns["SE"]
    share = f"{100 * confidence:g}"
    low, high = _exp(log - wide), _exp(log + wide)
    return [Column(f"L{share}", 12, low), Column(f"U{share}", 12, high)]


def _exp(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(values)


def _ours(found: Results) -> list[Column]:
    number = Column("N", 8, found.columns["NMISS"], 0)
    return [number, Column("A1_FREQ", 12, found.frequency), *_cohorts(found)]


def _cohorts(found: Results) -> list[Column]:
    """In how many each variant is tested, if not all are in all."""
    return [] if found.cohorts is None else [Column("COHORTS", 8, found.cohorts.astype(float), 0)]


def columns_of(
    found: Results, test: str, confidence: float, firth: bool = False
) -> list[list[Column]]:
    """The lines of each variant: one, or one for the genotype and one for each covariate. firth:
    also, whether they are Firth's."""
    lines = _lines(found, test, confidence)
    c = found.columns
    if "I" in c:
        more = [Column("Q", 8, c["Q"]), Column("I", 7, c["I"])]
        lines = [[*line, *more, Column("EFFECTS", 8, c["EFFECTS"], 0)] for line in lines]
    if firth:
        fallen = Texts.of(np.where(found.status == fit.FIRTH, "Y", "N"))
        lines = [[*line, Column("FIRTH?", 6, fallen)] for line in lines]
    return lines


def _lines(found: Results, test: str, confidence: float) -> list[list[Column]]:
    if test == "chi-square":
        c, place = found.columns, _place(found.variants)
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(c["OR"])
        return [
            [
                *place,
                Column("F_A", 8, c["F_A"]), Column("F_U", 8, c["F_U"]),
                Column("A2", 4, found.variants.a2), Column("CHISQ", 12, c["CHISQ"]),
                _p(found), Column("OR", 12, c["OR"]), Column("SE", 12, c["SE"]),
                *_bounds(found, log, confidence), *_ours(found),
            ]
        ]  # fmt: skip
    beta, error = found.columns["BETA"], found.columns["SE"]
    lines = [_coefficient(found, test, "ADD", beta, error, confidence)]
    for row in found.covariates:
        lines.append(_coefficient(found, test, row.name, row.beta, row.error, confidence))
    return lines


def _coefficient(
    found: Results, test: str, name: str, beta: np.ndarray, error: np.ndarray, confidence: float
) -> list[Column]:
    c, wide, share = found.columns, normal_quantile(confidence), f"{100 * confidence:g}"
    statistic = beta / error
    if name == "ADD":
        p = _p(found)
    else:
        linear = test == "linear"
        known = pvalues.student(statistic, c["FREEDOM"]) if linear else pvalues.normal(statistic)
        p = Column("P", 12, known)
    low, high, effect = beta - wide * error, beta + wide * error, ("BETA", beta)
    if test == "logistic":
        low, high, effect = _exp(low), _exp(high), ("OR", _exp(beta))
    return [
        *_place(found.variants),
        Column("TEST", 10, name), Column("NMISS", 8, c["NMISS"], 0),
        Column(effect[0], 10, effect[1]), Column("SE", 8, error),
        Column(f"L{share}", 8, low), Column(f"U{share}", 8, high),
        Column("STAT", 12, statistic), p, Column("A1_FREQ", 12, found.frequency),
        *_cohorts(found),
        *([Column("METHOD", 6, c["METHOD"])] if "METHOD" in c else []),
        *([Column("INFO", 8, c["INFO"])] if "INFO" in c else []),
    ]  # fmt: skip


def trend_columns(found: Results) -> list[list[Column]]:
    """PLINK's .model, trend lines only."""
    assert found.genotypes is not None
    counts = found.genotypes.copy()
    cases, controls = (2 * counts[:, i, 0] + counts[:, i, 1] for i in (0, 1))
    other = [2 * counts[:, i, 2] + counts[:, i, 1] for i in (0, 1)]
    pairs = [
        np.array([f"{a}/{b}" for a, b in zip(x.tolist(), y.tolist())])
        for x, y in ((cases, other[0]), (controls, other[1]))
    ]
    c, place = found.columns, _place(found.variants)
    return [
        [
            place[0], place[1], place[3], Column("A2", 4, found.variants.a2),
            Column("TEST", 8, "TREND"), Column("AFF", 14, pairs[0]),
            Column("UNAFF", 14, pairs[1]), Column("CHISQ", 12, c["T_CHISQ"]),
            Column("DF", 4, "1"), Column("P", 12, c["T_P"]),
        ]
    ]  # fmt: skip


class _Printed(Sequence[list[str]]):
    """Lines as they are printed, made when they are looked at."""

    def __init__(self, line: list[Column], rows: int) -> None:
        self.line, self.rows = line, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: Any) -> Any:
        return [column.texts(slice(int(i), int(i) + 1))[0] for column in self.line]


def as_table(found: Results, test: str, confidence: float, firth: bool = False) -> Table:
    """What `compare.read_results` reads from the table that is written; p is not rounded."""
    line = columns_of(found, test, confidence, firth)[0]
    v = found.variants
    head = [column.heading for column in line]
    place = (v.name, v.chromosome.astype(np.int64), v.position)
    return Table(*place, found.log10_p, head, _Printed(line, len(v)))


def write_dropped(file: IO[bytes], listed: Variants, reason: np.ndarray, found: Results) -> None:
    """Why variants were left out of the study, and why tested ones have no result."""
    write_reasons(file, listed, reason)
    unsolved = (found.status > 0) & ~np.isin(found.status, fit.SCORED)
    _write_why(file, found.variants[np.flatnonzero(unsolved)], fit.MEANINGS, found.status[unsolved])


def write_reasons(file: IO[bytes], listed: Variants, reason: np.ndarray) -> None:
    """Why variants were left out of the study."""
    file.write(b"CHR\tSNP\tBP\tA1\tA2\tREASON\n")
    gone = np.flatnonzero(reason != KEPT)
    _write_why(file, listed[gone], REASONS, reason[gone])


def _write_why(file: IO[bytes], v: Variants, words: Sequence[str], why: np.ndarray) -> None:
    texts = np.array(words)[why].tolist()
    places = (v.chromosome, v.name, v.position, v.a1, v.a2)
    for row in zip(*(column.tolist() for column in places), texts):
        file.write(("\t".join(map(str, row)) + "\n").encode())
