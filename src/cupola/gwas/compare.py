"""Two result tables side by side: do they agree on -log10 p, and on what is a hit?

Reads what PLINK 1.9, PLINK 2, GWAMA and this library write, compressed with gzip or xz or not.
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

from cupola.errors import DataError
from cupola.gwas.files import chromosomes
from cupola.gwas.scan import Fields, scan

_NAME = ("SNP", "ID", "variant_id", "rs_number", "MARKERNAME")
_P = ("P", "p_value", "p-value", "neg_log_10_p_value")
_CHR = ("CHR", "#CHROM", "chromosome")
_BP = ("BP", "POS", "base_pair_location")
GENOME_WIDE = 5e-8


@dataclass(frozen=True)
class Table:
    """Rows of the genotype. name: numpy strings. log10_p: NaN where there is none. fields: the
    lines, split."""

    name: np.ndarray
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
        rows = _clean_rows(rest, len(head)) or _Listed([x.split() for x in _lines(rest)])
    except (OSError, UnicodeDecodeError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if any(len(row) != len(head) for row in rows.listed):
        raise DataError(f"{path}: not every line has {len(head)} columns")
    if "TEST" in head:
        test = rows.column(head.index("TEST"))
        rows = rows.chosen(np.flatnonzero((test == "ADD") | (test == "TREND")))
    c, b = (next((head.index(n) for n in names if n in head), None) for names in (_CHR, _BP))
    nothing = np.zeros(len(rows), np.int64)
    return Table(
        rows.column(name),
        nothing if c is None else chromosomes(rows.column(c)).astype(np.int64),
        nothing if b is None else rows.column(b).astype(np.int64),
        _log10s(rows.column(p), head[p].startswith("neg_log")),
        head,
        rows,
    )


class _Listed(Sequence[list[str]]):
    """Lines, split, however odd they are."""

    def __init__(self, listed: list[list[str]]) -> None:
        self.listed = listed

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, i: Any) -> Any:
        return self.listed[i]

    def column(self, j: int) -> np.ndarray:
        return np.array([row[j] for row in self.listed], str)

    def chosen(self, index: np.ndarray) -> _Listed:
        return _Listed([self.listed[i] for i in index.tolist()])


class _Scanned(_Listed):
    """The same of a clean file; a line is split when it is looked at."""

    def __init__(self, fields: Fields) -> None:
        super().__init__([])
        self.fields = fields

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, i: Any) -> Any:
        ends = zip(self.fields.starts[i].tolist(), self.fields.ends[i].tolist())
        return [self.fields.text[a:b].tobytes().decode() for a, b in ends]

    def column(self, j: int) -> np.ndarray:
        return self.fields.letters(j)

    def chosen(self, index: np.ndarray) -> _Listed:
        f = self.fields
        return _Scanned(Fields(f.text, f.starts[index], f.ends[index]))


def _clean_rows(text: bytes, columns: int) -> _Listed | None:
    found = scan(text)
    return _Scanned(found) if found is not None and found.columns == columns else None


def _lines(text: bytes) -> list[str]:
    return text.decode().splitlines()


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


def _log10s(texts: np.ndarray, negative: bool) -> np.ndarray:
    """log10 of many p, one by one where they are no plain numbers."""
    try:
        values = np.where(texts == "NA", "nan", texts).astype(np.float64)
    except ValueError:
        return np.array([_log10(text, negative) for text in texts.tolist()])
    if negative:
        return -values
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log10(values)
    for i in np.flatnonzero(~(values > 1e-300) & ~np.isnan(values)).tolist():
        found[i] = _log10(str(texts[i]), negative)
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
