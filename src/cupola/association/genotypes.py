"""A cohort's genotypes, whatever file they are in: packed hard calls, or dosages as numbers.

A dosage is the expected number of copies of an allele, 0 to 2. Files of hard calls give both forms;
files with imputed dosages give dosages only, since how to round them is the user's decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from cupola.association.bed import Bed
from cupola.association.files import CohortError

STEPS = 16384  # of a dosage to a copy: PLINK 2 keeps no finer ones
PGEN, BGEN, VCF = ".pgen", ".bgen", ".vcf"
_BLOCK = 1 << 21  # dosages in memory at once


class Genotypes(Protocol):
    """Genotypes of `people` people at `variants` variants. imputed: whether there are dosages that
    are no hard calls."""

    path: Path
    people: int
    variants: int
    width: int  # bytes of a variant's packed calls

    @property
    def imputed(self) -> bool: ...

    def rows(self, index: np.ndarray | slice) -> np.ndarray:
        """Packed calls, as `bed.Bed.rows`."""
        ...

    def dosages(self, index: np.ndarray | slice) -> np.ndarray:
        """Copies of a1, (variants, people) float64; NaN where missing."""
        ...


def open_genotypes(path: Path, person: Sequence[str], variants: int) -> Genotypes:
    """The genotypes of a file, checked against the people and variants that go with it."""
    ending = format_of(path)
    if ending == PGEN:
        from cupola.association.pgen import Pgen

        return Pgen(path, len(person), variants)
    if ending == BGEN:
        from cupola.association.bgen import Bgen

        return Bgen(path, len(person), variants)
    if ending == VCF:
        from cupola.association.vcf import Vcf

        return Vcf(path, person, variants)
    if ending in (".bcf", ".gen"):
        raise CohortError(
            "genotype-format",
            str(path),
            f"{ending[1:].upper()} cannot be read; PLINK 2 rewrites it: `plink2 --{ending[1:]} ... "
            "--make-pgen`",
        )
    return Bed(path, len(person), variants)


def require_hard_calls(path: Path) -> None:
    """CohortError for a file of imputed dosages, by its first bytes."""
    ending = format_of(path)
    if ending == PGEN:
        from cupola.association.pgen import holds_dosages

        imputed = holds_dosages(path)
    else:
        imputed = ending in (BGEN, VCF)
    if imputed:
        raise no_hard_calls(path)


def format_of(path: Path) -> str:
    """The ending that says what a file is; that of what is packed in it, for gzip."""
    name = path.name.lower().removesuffix(".gz")
    return name[name.rfind(".") :] if "." in name else ""


def blocks(genotypes: Genotypes, index: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Dosages of chosen variants, a few at a time; within 0 to 2 whatever the file says: bounds of
    masked sums hang on it."""
    size = max(1, _BLOCK // max(1, genotypes.people))
    for start in range(0, len(index), size):
        part = slice(start, min(start + size, len(index)))
        yield part, np.clip(genotypes.dosages(index[part]), 0.0, 2.0)


def missing_by_person(genotypes: Genotypes) -> np.ndarray:
    """How many dosages each person lacks, over all variants."""
    count = np.zeros(genotypes.people, np.int64)
    for _, dosages in blocks(genotypes, np.arange(genotypes.variants)):
        count += np.count_nonzero(np.isnan(dosages), axis=0)
    return count


def no_hard_calls(path: Path) -> CohortError:
    return CohortError(
        "dosages",
        str(path),
        "holds imputed dosages, but the study asks for hard calls: say dosages = true in the "
        "study, or make hard calls of them (`plink2 --make-bed`)",
    )


def package_missing(path: Path, name: str) -> CohortError:
    return CohortError(
        "package-missing",
        str(path),
        f"reading it needs the package {name}: pip install 'cupola[dosages]'",
    )
