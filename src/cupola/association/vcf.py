"""Imputed genotypes in VCF, as text or gzip: DS, else GP, else GT of each person; a1 is ALT.

The text is read once. Its dosages are kept in a temporary file without a name, two bytes each, in
`STEPS`; it is gone when the process ends.
"""

from __future__ import annotations

import gzip
import math
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from cupola.association.files import MT, CohortError, People, Variants, X, Y, chromosome
from cupola.association.genotypes import STEPS, no_hard_calls
from cupola.association.variant_files import labelled, positions, two_alleles

_MISSING = 65535
_FIXED = 9  # columns before the people
_CALLS = {a + mark + b: float(int(a) + int(b)) for a in "01" for b in "01" for mark in "/|"}
_NOT_CALLED = {".", "./.", ".|."}


class Vcf:
    imputed = True

    def __init__(self, path: Path, person: Sequence[str], variants: int) -> None:
        self.path, self.people, self.variants = path, len(person), variants
        self.width = -(-self.people // 4)
        self._lock = threading.Lock()
        held = vcf_people(path).person
        if len(held) != len(person):
            raise CohortError(
                "vcf-people",
                str(path),
                f"holds {len(held):,} people, but its table of people names {len(person):,}",
            )
        for i, (inside, beside) in enumerate(zip(held, person), 1):
            if inside.split()[1] != beside.split()[1]:
                raise CohortError(
                    "vcf-people",
                    str(path),
                    f"person {i} is '{inside.split()[1]}', but '{beside}' in its table of people: "
                    "both need the same order",
                )

    def rows(self, index: np.ndarray | slice) -> np.ndarray:  # noqa: ARG002
        raise no_hard_calls(self.path)

    def dosages(self, index: np.ndarray | slice) -> np.ndarray:
        with self._lock:
            kept = self._kept[index]
        return np.where(kept == _MISSING, np.nan, kept / STEPS)

    @cached_property
    def _kept(self) -> np.ndarray:
        """(variants, people) in steps of a dosage, in a file without a name."""
        with tempfile.TemporaryFile() as file:
            for number, fields in _records(self.path):
                file.write(_steps(self.path, number, fields, self.people).tobytes())
            file.flush()
            return np.memmap(file, np.uint16, "r", shape=(self.variants, self.people))


def vcf_people(path: Path) -> People:
    """The people of a file's header, in families called 0; it does not tell their sex."""
    with _opened(path) as file:
        try:
            for line in file:
                if line.startswith("#CHROM"):
                    person = [f"0 {name}" for name in line.split()[_FIXED:]]
                    if not person:
                        break
                    return People(person, np.zeros(len(person), np.uint8), ["-9"] * len(person))
                if not line.startswith("#"):
                    break
        except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile):
            raise CohortError("vcf-not-text", str(path), "is no text, or broken gzip") from None
    raise CohortError("vcf-header", str(path), "has no line '#CHROM ...' that names people")


def read_vcf_variants(path: Path) -> Variants:
    columns: list[list[str]] = [[] for _ in range(5)]
    for number, fields in _records(path):
        for column, field in zip(columns, fields):
            column.append(field)
        two_alleles(path, number, fields[2], 2 + fields[4].count(","), "vcf")
    chromosomes, position, name, ref, alt = columns
    if not name:
        raise CohortError("vcf-empty", str(path), "holds no variant")
    return labelled(chromosomes, positions(path, position, "vcf"), name, alt, ref)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Fixed columns and the rest, of each variant, with the number of its line."""
    with _opened(path) as file:
        try:
            for number, line in enumerate(file, 1):
                if line.startswith("#") or line == "\n":
                    continue
                fields = line.rstrip("\n").split("\t", _FIXED)
                if len(fields) <= _FIXED:
                    raise CohortError(
                        "vcf-columns", f"{path}, line {number}", "has too few columns"
                    )
                yield number, fields
        except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile):
            raise CohortError("vcf-not-text", str(path), "is no text, or broken gzip") from None


def _steps(path: Path, number: int, fields: list[str], people: int) -> np.ndarray:
    """Dosages of a line, in whole steps. Chromosomes that dosages are not tested on have none."""
    kept = np.full(people, _MISSING, np.uint16)
    if chromosome(fields[0]) in (X, Y, MT):
        return kept
    told = fields[_FIXED].split("\t")
    if len(told) != people:
        raise CohortError(
            "vcf-columns", f"{path}, line {number}", f"{len(told):,} people, {people:,} expected"
        )
    places = [fields[8].split(":").index(n) if n in fields[8].split(":") else -1 for n in _READ]
    try:
        values = np.array([_dosage(text.split(":"), places) for text in told])
    except ValueError as error:
        raise CohortError("vcf-genotype", f"{path}, line {number}", str(error)) from None
    wrong = (values < 0) | (values > 2.001)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise CohortError(
            "vcf-genotype", f"{path}, line {number}", f"'{told[at]}' is no dosage from 0 to 2"
        )
    known = ~np.isnan(values)
    kept[known] = np.rint(np.minimum(values[known], 2) * STEPS)
    return kept


_READ = ("DS", "GP", "GT")


def _dosage(parts: list[str], places: list[int]) -> float:
    """Of one person: DS, else GP, else GT; NaN where none is told."""
    ds, gp, gt = (parts[at] if 0 <= at < len(parts) else "." for at in places)
    if ds not in ("", "."):
        return float(ds)
    if gp[:1] not in ("", "."):
        chances = [float(text) for text in gp.split(",")]
        if len(chances) != 3 or not math.isclose(sum(chances), 1, abs_tol=0.02):
            raise ValueError(f"GP = '{gp}' is not the probability of 0, 1 and 2 copies")
        return chances[1] + 2 * chances[2]
    if gt in _NOT_CALLED:
        return math.nan
    if gt not in _CALLS:
        raise ValueError(f"'{':'.join(parts)}' has neither DS, GP nor a call of two copies")
    return _CALLS[gt]


def _opened(path: Path) -> IO[str]:
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rt", encoding="utf-8") if zipped else path.open(encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or "not readable").lower()
        raise CohortError("vcf-unreadable", str(path), reason) from None
