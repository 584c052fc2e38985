"""Result tables with PLINK 1.9's names, columns and digits; also GWAS-SSF and Parquet.

What PLINK has not comes after its columns: standard error, people, frequency of A1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from scipy import special

from cupola.errors import PlanError
from cupola.gwas import fit, tails
from cupola.gwas.agreement import KEPT, REASONS
from cupola.gwas.files import Variants
from cupola.gwas.results import Results

ENDINGS = {"chi-square": ".assoc", "linear": ".assoc.linear", "logistic": ".assoc.logistic"}
_BLOCK = 1 << 15  # rows formatted at a time
_NAMES = {23: "X", 24: "Y", 25: "XY", 26: "MT"}


def number(values: np.ndarray) -> list[str]:
    """Four digits as PLINK prints them; NA for NaN."""
    return ["NA" if text == "nan" else text for text in [f"{v:.4g}" for v in values.tolist()]]


def p_value(p: np.ndarray, log10: np.ndarray) -> list[str]:
    """p with four digits, also where it is too small for a float."""
    texts = number(p)
    for i in np.flatnonzero((p < 1e-300) & np.isfinite(log10)):
        power = int(np.floor(log10[i]))
        texts[i] = f"{10 ** (log10[i] - power):.4g}e{power}"
    return texts


def normal_quantile(confidence: float) -> float:
    return float(special.ndtri(0.5 + confidence / 2))


Column = tuple[str, int, Callable[[slice], Sequence[str]]]  # heading, width, texts of some rows


def _whole(values: np.ndarray) -> Callable[[slice], list[str]]:
    return lambda part: ["NA" if v != v else f"{v:.0f}" for v in values[part].tolist()]


def _text(values: np.ndarray) -> Callable[[slice], list[str]]:
    return lambda part: values[part].tolist()


def _number(values: np.ndarray) -> Callable[[slice], list[str]]:
    return lambda part: number(values[part])


def _same(value: str) -> Callable[[slice], list[str]]:
    return lambda part: [value] * (part.stop - part.start)


def _p(found: Results) -> Callable[[slice], list[str]]:
    return lambda part: p_value(found.columns["P"][part], found.log10_p[part])


def _place(v: Variants) -> list[Column]:
    longest = max((len(name) for name in v.name.tolist()), default=0)
    return [
        ("CHR", 4, _whole(v.chromosome)),
        ("SNP", max(4, longest), _text(v.name)),
        ("BP", 10, _whole(v.position)),
        ("A1", 4, _text(v.a1)),
    ]


def _bounds(found: Results, log: np.ndarray, confidence: float) -> list[Column]:
    """Confidence interval of an odds ratio with this logarithm."""
    wide = normal_quantile(confidence) * found.columns["SE"]
    share = f"{100 * confidence:g}"
    low, high = _exp(log - wide), _exp(log + wide)
    return [(f"L{share}", 12, _number(low)), (f"U{share}", 12, _number(high))]


def _exp(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(values)


def _ours(found: Results) -> list[Column]:
    return [("N", 8, _whole(found.columns["NMISS"])), ("A1_FREQ", 12, _number(found.frequency))]


def columns_of(found: Results, test: str, confidence: float) -> list[list[Column]]:
    """The lines of each variant: one, or one for the genotype and one for each covariate."""
    if test == "chi-square":
        c, place = found.columns, _place(found.variants)
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(c["OR"])
        return [
            [
                *place,
                ("F_A", 8, _number(c["F_A"])), ("F_U", 8, _number(c["F_U"])),
                ("A2", 4, _text(found.variants.a2)), ("CHISQ", 12, _number(c["CHISQ"])),
                ("P", 12, _p(found)), ("OR", 12, _number(c["OR"])), ("SE", 12, _number(c["SE"])),
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
        p = _number(tails.student(statistic, c["FREEDOM"]) if linear else tails.normal(statistic))
    low, high, effect = beta - wide * error, beta + wide * error, ("BETA", beta)
    if test == "logistic":
        low, high, effect = _exp(low), _exp(high), ("OR", _exp(beta))
    return [
        *_place(found.variants),
        ("TEST", 10, _same(name)), ("NMISS", 8, _whole(c["NMISS"])),
        (effect[0], 10, _number(effect[1])), ("SE", 8, _number(error)),
        (f"L{share}", 8, _number(low)), (f"U{share}", 8, _number(high)),
        ("STAT", 12, _number(statistic)), ("P", 12, p),
        ("A1_FREQ", 12, _number(found.frequency)),
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
            place[0], place[1], place[3], ("A2", 4, _text(found.variants.a2)),
            ("TEST", 8, _same("TREND")), ("AFF", 14, _text(pairs[0])),
            ("UNAFF", 14, _text(pairs[1])), ("CHISQ", 12, _number(c["T_CHISQ"])),
            ("DF", 4, _same("1")), ("P", 12, _number(c["T_P"])),
        ]
    ]  # fmt: skip


def write_table(file: IO[str], lines: list[list[Column]], shown: Sequence[np.ndarray] = ()) -> None:
    """Columns right-aligned as PLINK aligns them, a block of variants at a time. shown: of each
    line but the first, at which variants it is written."""
    head, m = lines[0], _rows(lines[0])
    form = " ".join(f"%{width}s" for _, width, _ in head) + "\n"
    file.write(form % tuple(name for name, _, _ in head))
    for start in range(0, m, _BLOCK):
        part = slice(start, min(start + _BLOCK, m))
        blocks = [[form % row for row in zip(*(texts(part) for _, _, texts in c))] for c in lines]
        for block, where in zip(blocks[1:], shown):
            for i in np.flatnonzero(~where[part]):
                block[i] = ""
        file.write("".join(row for variant in zip(*blocks) for row in variant))


def _rows(columns: Iterable[Column]) -> int:
    return len(next(iter(columns))[2](slice(None)))


def write_ssf(file: IO[str], found: Results, test: str) -> None:
    """GWAS-SSF: the GWAS catalog's tab-separated columns in their order."""
    v, c = found.variants, found.columns
    names = [_NAMES.get(n, str(n)) for n in range(27)]
    chi = test == "chi-square"
    effect = ("odds_ratio", c["OR"]) if chi else ("beta", c["BETA"])
    columns: list[tuple[str, Callable[[slice], Sequence[str]]]] = [
        ("chromosome", lambda part: [names[n] for n in v.chromosome[part].tolist()]),
        ("base_pair_location", _whole(v.position)),
        ("effect_allele", _text(v.a1)),
        ("other_allele", _text(v.a2)),
        (effect[0], _long(effect[1])),
        ("standard_error", _long(c["SE"])),
        ("effect_allele_frequency", _long(found.frequency)),
        ("neg_log_10_p_value", _long(-found.log10_p)),
        ("variant_id", _text(v.name)),
        ("n", _whole(c["NMISS"])),
    ]
    file.write("\t".join(name for name, _ in columns) + "\n")
    for start in range(0, len(v), _BLOCK):
        part = slice(start, min(start + _BLOCK, len(v)))
        rows = zip(*(texts(part) for _, texts in columns))
        file.write("".join("\t".join(row) + "\n" for row in rows))


def _long(values: np.ndarray) -> Callable[[slice], list[str]]:
    return lambda part: ["NA" if v != v else f"{v:.8g}" for v in values[part].tolist()]


def write_parquet(path: Path, found: Results) -> None:
    """Every column of the results, unrounded."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PlanError("Parquet needs pyarrow: pip install 'cupola[gwas]'") from None
    v = found.variants
    columns = {
        "CHR": v.chromosome, "SNP": v.name, "BP": v.position, "A1": v.a1, "A2": v.a2,
        "A1_FREQ": found.frequency, **found.columns,
        "NOTE": np.array(fit.MEANINGS)[found.status],
    }  # fmt: skip
    for c in found.covariates:
        columns |= {f"BETA_{c.name}": c.beta, f"SE_{c.name}": c.error}
    parquet.write_table(pyarrow.table({k: pyarrow.array(a) for k, a in columns.items()}), path)


def write_dropped(file: IO[str], listed: Variants, reason: np.ndarray, found: Results) -> None:
    """Why variants were left out of the study, and why tested ones have no result."""
    file.write("CHR\tSNP\tBP\tA1\tA2\tREASON\n")
    for variants, index, texts in (
        (listed, np.flatnonzero(reason != KEPT), np.array(REASONS)[reason]),
        (found.variants, np.flatnonzero(found.status), np.array(fit.MEANINGS)[found.status]),
    ):
        v = variants[index]
        rows = zip(v.chromosome.tolist(), v.name.tolist(), v.position.tolist(), v.a1.tolist(),
                   v.a2.tolist(), texts[index].tolist())  # fmt: skip
        file.writelines("\t".join(map(str, row)) + "\n" for row in rows)
