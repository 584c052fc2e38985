"""Imputed genotypes in BGEN format (1.2 and 1.3), read by the package `bgen`.

a1 is the second allele of each variant; dosages are expected copies of it, rounded as PLINK 2 does.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from cupola.association.files import CohortError, Variants
from cupola.association.genotypes import STEPS, no_hard_calls, package_missing
from cupola.association.variant_files import labelled, two_alleles


class Bgen:
    imputed = True

    def __init__(self, path: Path, people: int, variants: int) -> None:
        self.path, self.people, self.variants = path, people, variants
        self.width = -(-people // 4)
        self._lock = threading.Lock()
        self._reader = _opened(path)
        try:
            held = (len(self._reader), len(self._reader.samples))
        except (ValueError, RuntimeError, OSError) as error:
            raise CohortError("bgen-unreadable", str(path), str(error)) from None
        if held != (variants, people):
            raise CohortError(
                "bgen-size",
                str(path),
                f"holds {held[0]:,} variants of {held[1]:,} people, but its table of people names "
                f"{people:,} (does it belong to it?)",
            )

    def rows(self, index: np.ndarray | slice) -> np.ndarray:  # noqa: ARG002
        raise no_hard_calls(self.path)

    def dosages(self, index: np.ndarray | slice) -> np.ndarray:
        chosen = np.arange(self.variants)[index].tolist()
        found = np.empty((len(chosen), self.people))
        with self._lock:
            for i, row in enumerate(chosen):
                try:
                    found[i] = self._reader[row].alt_dosage
                except (ValueError, RuntimeError, OSError) as error:
                    where = f"{self.path}, variant {row + 1}"
                    raise CohortError("bgen-variant", where, str(error)) from None
        return np.rint(found * STEPS) / STEPS


def read_bgen_variants(path: Path) -> Variants:
    """All variants of a file: their names, places and alleles."""
    reader = _opened(path)
    chromosome, position, name, a1, a2 = [], [], [], [], []
    try:
        for number, one in enumerate(reader, 1):
            two_alleles(path, number, one.rsid, len(one.alleles), "bgen")
            chromosome.append(one.chrom)
            position.append(one.pos)
            name.append(one.rsid if one.rsid not in ("", ".") else one.varid)
            a1.append(one.alleles[1])
            a2.append(one.alleles[0])
    except (ValueError, RuntimeError, OSError) as error:  # names that are no text, too
        where = f"{path}, variant {len(name) + 1}"
        raise CohortError("bgen-variant", where, str(error)) from None
    reader.close()
    if not name:
        raise CohortError("bgen-empty", str(path), "holds no variant")
    return labelled(chromosome, position, name, a1, a2)


def _opened(path: Path) -> Any:
    try:
        from bgen import BgenReader
    except ImportError:
        raise package_missing(path, "bgen") from None
    try:
        with path.open("rb"):
            pass
        return BgenReader(str(path), delay_parsing=False)
    except OSError as error:
        reason = (error.strerror or "not readable").lower()
        raise CohortError("bgen-unreadable", str(path), reason) from None
    except (ValueError, RuntimeError) as error:
        raise CohortError("bgen-unreadable", str(path), str(error)) from None
