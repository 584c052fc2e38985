"""Variants of files that are no .bim: PLINK 2's .pvar, and what is in BGEN and VCF files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cupola.association.files import CohortError, Variants, chromosomes, is_position, numbered_lines
from cupola.association.texts import Texts

_WANTED = ("#CHROM", "POS", "ID", "REF", "ALT")


def read_pvar(path: Path) -> Variants:
    """A .pvar file: a1 is ALT. Without a header it has the columns of a .bim file."""
    from cupola.association.files import slow_variants

    packed = path if path.suffix == ".zst" else path.with_name(path.name + ".zst")
    if packed.exists() and not (path.exists() and path != packed):
        raise CohortError(
            "pvar-zst",
            str(packed),
            "is packed by zstd: `plink2 --zst-decompress` writes it as text (.pvar)",
        )
    columns: list[list[str]] = [[] for _ in _WANTED]
    places: list[int] = []
    for number, fields in numbered_lines(path, "pvar"):
        if fields[0].startswith("##"):
            continue
        if not places:
            if fields[0] != "#CHROM":
                return slow_variants(path)
            if missing := [name for name in _WANTED if name not in fields]:
                raise CohortError(
                    "pvar-header", f"{path}, line {number}", f"has no column {missing[0]}"
                )
            places = [fields.index(name) for name in _WANTED]
            continue
        if len(fields) <= max(places):
            raise CohortError("pvar-columns", f"{path}, line {number}", "has too few columns")
        for column, place in zip(columns, places):
            column.append(fields[place])
        two_alleles(path, number, fields[places[2]], 2 + fields[places[4]].count(","), "pvar")
    chromosome, position, name, ref, alt = columns
    if not name:
        raise CohortError("pvar-empty", str(path), "holds no variant")
    return labelled(chromosome, positions(path, position, "pvar"), name, alt, ref)


def positions(path: Path, texts: Sequence[str], what: str) -> list[int]:
    try:
        return np.array([int(text) for text in texts], np.int64).tolist()
    except (ValueError, OverflowError):
        wrong = next(text for text in texts if not is_position(text))
        raise CohortError(f"{what}-position", str(path), f"'{wrong}' is no position") from None


def two_alleles(path: Path, number: int, name: str, alleles: int, what: str) -> None:
    """Refuse more than two: copies of which one?"""
    if alleles != 2:
        raise CohortError(
            f"{what}-alleles",
            f"{path}, variant or line {number}",
            f"'{name}' has {alleles} alleles, two are needed: split such variants (`bcftools norm "
            "-m -any`), or leave them out (`plink2 --max-alleles 2`)",
        )


def labelled(
    chromosome: Sequence[str],
    position: Sequence[int],
    name: Sequence[str],
    a1: Sequence[str],
    a2: Sequence[str],
) -> Variants:
    """Variants; those without a name are called by place and alleles. '.' is no allele."""
    first, second = ([_allele(text) for text in side] for side in (a1, a2))
    names = [
        told if told not in (".", "") else f"{c.lower().removeprefix('chr')}:{p}:{b}:{a}"
        for told, c, p, a, b in zip(name, chromosome, position, first, second)
    ]
    return Variants(
        chromosomes(chromosome),
        np.array(position, np.int64),
        Texts.of(names),
        Texts.of(first),
        Texts.of(second),
    )


def _allele(text: str) -> str:
    return "0" if text in (".", "") else text.upper()
