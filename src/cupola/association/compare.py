"""Two result tables side by side: do they agree on -log10 p, and on what is a hit?

Reads what PLINK 1.9, PLINK 2, REGENIE, GWAMA and this library write, also compressed with gzip
or xz.
"""

from __future__ import annotations

import gzip
import lzma
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cupola.association.files import chromosomes
from cupola.association.texts import Texts
from cupola.errors import DataError

_NAME = ("SNP", "ID", "variant_id", "rs_number", "MARKERNAME")
_P = ("P", "p_value", "p-value", "neg_log_10_p_value", "LOG10P")
_NEGATIVE = ("neg_log_10_p_value", "LOG10P")  # -log10 p
_CHR = ("CHR", "#CHROM", "chromosome", "CHROM")
_BP = ("BP", "POS", "base_pair_location", "GENPOS")
GENOME_WIDE = 5e-8


@dataclass(frozen=True)
class Table:
    """Rows of the genotype. name: texts. log10_p: NaN where there is none. fields: the
    lines, split."""

    name: np.ndarray | Texts
    chromosome: np.ndarray
    position: np.ndarray
    log10_p: np.ndarray
    head: list[str]
    fields: Sequence[list[str]]


def read_results(path: Path, p_column: str | None = None) -> Table:
    """A result table; of one with a TEST column the additive lines."""
    try:
        head_line, _, rest = _read(path).partition(b"\n")
        head = head_line.decode().split()
        name, p = _find(head, _NAME, path), _find(head, (p_column,) if p_column else _P, path)
        lines = rest.decode().splitlines()
    except (OSError, UnicodeDecodeError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    c, b = (next((head.index(n) for n in names if n in head), None) for names in (_CHR, _BP))
    test = head.index("TEST") if "TEST" in head else None
    columns: dict[int, list[str]] = {j: [] for j in (name, p, c, b) if j is not None}
    kept = []
    for line in lines:
        fields = line.split()
        if fields and len(fields) != len(head):
            raise DataError(f"{path}: not every line has {len(head)} columns")
        if fields and (test is None or fields[test] in ("ADD", "TREND")):
            kept.append(line)
            for j, column in columns.items():
                column.append(fields[j])
    nothing = np.zeros(len(kept), np.int64)
    return Table(
        np.array(columns[name], object),
        nothing if c is None else chromosomes(columns[c]).astype(np.int64),
        nothing if b is None else np.array([int(text) for text in columns[b]], np.int64),
        _log10s(columns[p], head[p] in _NEGATIVE),
        head,
        _Lines(kept),
    )


class _Lines(Sequence[list[str]]):
    """Lines that are split when they are looked at."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, i: Any) -> Any:
        return self.lines[i].split()


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    return lzma.decompress(data) if data[:6] == b"\xfd7zXZ\0" else data


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


def _log10s(texts: list[str], negative: bool) -> np.ndarray:
    """log10 of many p, one by one where they are no plain numbers."""
    try:
        values = np.array([math.nan if text == "NA" else float(text) for text in texts])
    except ValueError:
        return np.array([_log10(text, negative) for text in texts])
    if negative:
        return -values
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log10(values)
    for i in np.flatnonzero(~(values > 1e-300) & ~np.isnan(values)).tolist():
        found[i] = _log10(texts[i], negative)
    return found


def compare_results(ours: Table, theirs: Table) -> dict[str, Any]:
    """How the second table, the reference, sees the variants of the first."""
    place = {name: i for i, name in enumerate(theirs.name.tolist())}
    pairs = [(i, place[name]) for i, name in enumerate(ours.name.tolist()) if name in place]
    if not pairs:
        raise DataError("the two tables have no variant in common")
    a, b = (t.log10_p[list(column)] for t, column in zip((ours, theirs), zip(*pairs)))
    both = np.isfinite(a) & np.isfinite(b)
    x, y = -a[both], -b[both]
    if len(x) == 0:
        raise DataError("no variant has a p-value in both tables")
    worst = int(np.argmax(np.abs(x - y)))
    names = ours.name[[i for i, _ in pairs]].tolist()
    told = [name for name, ok in zip(names, both) if ok]
    bonferroni = 0.05 / len(y)
    return {
        "variants": len(pairs),
        "only_first": len(ours.name) - len(pairs),
        "only_reference": len(theirs.name) - len(pairs),
        "compared": len(x),
        "na_only_first": int((np.isnan(a) & ~np.isnan(b)).sum()),
        "na_only_reference": int((np.isnan(b) & ~np.isnan(a)).sum()),
        "pearson": _correlation(x, y, "pearsonr"),
        "spearman": _correlation(x, y, "spearmanr"),
        "largest_difference": {"log10_p": float(abs(x - y)[worst]), "variant": told[worst]},
        "hits": {
            "5e-8": _hits(x, y, told, GENOME_WIDE),
            "bonferroni": {"threshold": bonferroni, **_hits(x, y, told, bonferroni)},
        },
    }


def _correlation(x: np.ndarray, y: np.ndarray, of: str) -> float | None:
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return None
    from scipy import stats  # here: a report does without it, and it is slow to load

    return float(getattr(stats, of)(x, y)[0])


def _hits(x: np.ndarray, y: np.ndarray, names: list[str], p: float) -> dict[str, Any]:
    mine, other = x > -math.log10(p), y > -math.log10(p)
    return {
        "both": int((mine & other).sum()),
        "gained": [names[i] for i in np.flatnonzero(mine & ~other)],
        "lost": [names[i] for i in np.flatnonzero(other & ~mine)],
    }
