"""Strands by frequency: A/T and C/G variants have the same letters on both strands, but other
frequencies. A public list brings those of a reference; every cohort compares its own with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cupola.association.agreement import SAME, SWAPPED, Found, strand_unknown
from cupola.association.files import Variants, read_variants
from cupola.errors import DataError

if TYPE_CHECKING:
    from cupola.association.site import Site

#: Beside a public list: what plink2 --freq and PLINK 1.9 --freq write, and the names of columns:
#: of the variant, the allele that is counted, the other one, and its frequency.
FILES = {
    ".afreq": ("ID", "ALT", "REF", "ALT_FREQS"),
    ".frq": ("SNP", "A1", "A2", "MAF"),
}
CLEAR = 0.4  # minor frequencies from here on tell no strand
FEWEST = 50  # people with a call: the side of fewer would be chance, or single people's genotypes
_BLOCK = 4096


def public_list(path: Path, strand: str) -> Variants:
    """A study's public list; with frequencies if it tells strands by them."""
    variants = read_variants(path)
    return with_frequencies(variants, path) if strand == "frequency" else variants


def with_frequencies(variants: Variants, path: Path) -> Variants:
    """The list with the frequency of a1 from the file beside it; NaN where it does not say."""
    for ending, names in FILES.items():
        beside = path.with_suffix(ending)
        if beside.is_file():
            known = _read(beside, names)
            break
    else:
        raise DataError(
            f"quality.unknown_strand = 'frequency' needs frequencies beside {path}: "
            f"{path.with_suffix('.afreq').name} (plink2 --freq) or "
            f"{path.with_suffix('.frq').name} (plink --freq); or say 'drop'"
        )
    found = np.full(len(variants), np.nan, np.float32)
    rows = zip(variants.name.tolist(), variants.a1.tolist(), variants.a2.tolist())
    for i, (name, a1, a2) in enumerate(rows):
        if (name, a1, a2) in known:
            found[i] = known[name, a1, a2]
        elif (name, a2, a1) in known:
            found[i] = 1 - known[name, a2, a1]
    if np.isnan(found).all():
        raise DataError(f"{beside}: no variant has the name and the alleles of one in {path}")
    return replace(variants, frequency=found)


def _read(path: Path, names: tuple[str, ...]) -> dict[tuple[str, str, str], float]:
    found = {}
    with path.open(encoding="utf-8") as file:
        head = file.readline().lstrip("#").split()
        if missing := [name for name in names if name not in head]:
            raise DataError(f"{path}: line 1 names no column {missing[0]}")
        at = [head.index(name) for name in names]
        for number, line in enumerate(file, 2):
            words = line.split()
            if not words:
                continue
            try:
                name, a1, a2, told = (words[i] for i in at)
                rate = float(told)
            except (IndexError, ValueError):
                if len(words) == len(head):  # 'NA', or several alleles in one line
                    continue
                raise DataError(f"{path}: line {number} has {len(words)} columns") from None
            if 0 <= rate <= 1:
                found[name, a1.upper(), a2.upper()] = rate
    return found


def other_strand(own: Site, proposed: Variants, found: Found) -> np.ndarray:
    """What a cohort finds of proposed variants, (k, 2) of 0 and 1: its frequency speaks for the
    other strand; it cannot tell. Both 0 for variants whose letters tell, or that it lacks."""
    told = np.zeros((len(proposed), 2), np.int64)
    assert proposed.frequency is not None
    unknown = strand_unknown(proposed) & np.isin(found.status, (SAME, SWAPPED)) & (found.row >= 0)
    asked = np.flatnonzero(unknown)
    for start in range(0, len(asked), _BLOCK):
        rows = asked[start : start + _BLOCK]
        one, other = own.copies(found.row[rows])
        both = one + other
        with np.errstate(invalid="ignore"):
            here = np.where(found.status[rows] == SWAPPED, other, one) / both
        there = proposed.frequency[rows].astype(np.float64)
        clear = (both >= 2 * FEWEST) & _clear(here) & _clear(there)
        told[rows, 0] = clear & ((here < 0.5) != (there < 0.5))
        told[rows, 1] = ~clear
    return told


def _clear(rate: np.ndarray) -> np.ndarray:
    """Not for NaN."""
    return np.asarray((rate < CLEAR) | (rate > 1 - CLEAR))
