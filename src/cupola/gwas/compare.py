"""Two result tables side by side: do they agree on -log10 p, and on what is a hit?

Reads what PLINK 1.9, PLINK 2, GWAMA and this library write, compressed with gzip or xz or not.
"""

from __future__ import annotations

import gzip
import lzma
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from scipy import stats

from cupola.errors import DataError
from cupola.gwas.files import chromosome

_NAME = ("SNP", "ID", "variant_id", "rs_number", "MARKERNAME")
_P = ("P", "p_value", "p-value", "neg_log_10_p_value")
_CHR = ("CHR", "#CHROM", "chromosome")
_BP = ("BP", "POS", "base_pair_location")
GENOME_WIDE = 5e-8


@dataclass(frozen=True)
class Table:
    """Rows of the genotype. log10_p: NaN where there is none. fields: the lines, split."""

    name: list[str]
    chromosome: np.ndarray
    position: np.ndarray
    log10_p: np.ndarray
    head: list[str]
    fields: list[list[str]]


def read_results(path: Path, p_column: str | None = None) -> Table:
    """A result table; of one with a TEST column the additive lines."""
    try:
        with _open(path) as file:
            head = file.readline().split()
            name, p = _find(head, _NAME, path), _find(head, (p_column,) if p_column else _P, path)
            test = head.index("TEST") if "TEST" in head else None
            rows = [line.split() for line in file]
    except (OSError, UnicodeDecodeError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    rows = [row for row in rows if test is None or row[test] in ("ADD", "TREND")]
    if any(len(row) != len(head) for row in rows):
        raise DataError(f"{path}: not every line has {len(head)} columns")
    c, b = (next((head.index(n) for n in names if n in head), None) for names in (_CHR, _BP))
    negative = head[p].startswith("neg_log")
    return Table(
        [row[name] for row in rows],
        np.array([0 if c is None else chromosome(row[c]) for row in rows]),
        np.array([0 if b is None else int(row[b]) for row in rows]),
        np.array([_log10(row[p], negative) for row in rows]),
        head,
        rows,
    )


def _open(path: Path) -> TextIO:
    with path.open("rb") as file:
        magic = file.read(6)
    if magic[:2] == b"\x1f\x8b":
        return gzip.open(path, "rt", encoding="utf-8")
    if magic == b"\xfd7zXZ\0":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _find(head: list[str], names: tuple[str, ...], path: Path) -> int:
    for name in names:
        if name in head:
            return head.index(name)
    raise DataError(f"{path}: has no column {' or '.join(names)} (it has {', '.join(head[:20])})")


def _log10(text: str, negative: bool) -> float:
    """log10 of a p that may be too small for a float."""
    try:
        if negative:
            return -float(text)
        mantissa, _, power = text.lower().partition("e")
        value = float(mantissa)
        if value == 0:
            return -math.inf
        return math.log10(value) + int(power or 0) if value > 0 else math.nan
    except ValueError:
        return math.nan


def compare_results(ours: Table, theirs: Table) -> dict[str, Any]:
    """How the second table, the reference, sees the variants of the first."""
    place = {name: i for i, name in enumerate(theirs.name)}
    pairs = [(i, place[name]) for i, name in enumerate(ours.name) if name in place]
    if not pairs:
        raise DataError("the two tables have no variant in common")
    a, b = (t.log10_p[list(column)] for t, column in zip((ours, theirs), zip(*pairs)))
    both = np.isfinite(a) & np.isfinite(b)
    x, y = -a[both], -b[both]
    if len(x) == 0:
        raise DataError("no variant has a p-value in both tables")
    worst = int(np.argmax(np.abs(x - y)))
    names = [ours.name[i] for i, _ in pairs]
    told = [name for name, ok in zip(names, both) if ok]
    bonferroni = 0.05 / len(y)
    return {
        "variants": len(pairs),
        "only_first": len(ours.name) - len(pairs),
        "only_reference": len(theirs.name) - len(pairs),
        "compared": len(x),
        "na_only_first": int((np.isnan(a) & ~np.isnan(b)).sum()),
        "na_only_reference": int((np.isnan(b) & ~np.isnan(a)).sum()),
        "pearson": _correlation(x, y, stats.pearsonr),
        "spearman": _correlation(x, y, stats.spearmanr),
        "largest_difference": {"log10_p": float(abs(x - y)[worst]), "variant": told[worst]},
        "hits": {
            "5e-8": _hits(x, y, told, GENOME_WIDE),
            "bonferroni": {"threshold": bonferroni, **_hits(x, y, told, bonferroni)},
        },
    }


def _correlation(x: np.ndarray, y: np.ndarray, of: Any) -> float | None:
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return None
    return float(of(x, y)[0])


def _hits(x: np.ndarray, y: np.ndarray, names: list[str], p: float) -> dict[str, Any]:
    mine, other = x > -math.log10(p), y > -math.log10(p)
    return {
        "both": int((mine & other).sum()),
        "gained": [names[i] for i in np.flatnonzero(mine & ~other)],
        "lost": [names[i] for i in np.flatnonzero(other & ~mine)],
    }
