"""Genotypes in PLINK 2's .pgen format, read by PLINK's own library (pgenlib).

Whether a file holds dosages stands in its header: a byte a variant, of which two bits are about
them (PLINK 2's file format specification, "Variant record types").
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from cupola.association.bed import WORD, packed
from cupola.association.files import CohortError
from cupola.association.genotypes import no_hard_calls, package_missing

_MAGIC = b"\x6c\x1b"
_FIXED, _FIXED_DOSAGES, _VARIABLE = 2, (3, 4), (0x10, 0x11)
_DOSAGE_BITS = 0x60
_STRETCH = 1 << 16  # variants to a block of the header
_CALL = np.array([3, 2, 0, 1], np.uint8)  # of a .bed file, by copies of a1; 3: missing


class Pgen:
    """a1 is ALT, as in a .bed file that PLINK 2 makes of it."""

    def __init__(self, path: Path, people: int, variants: int) -> None:
        self.path, self.people, self.variants = path, people, variants
        self.width = -(-people // 4)
        try:
            import pgenlib
        except ImportError:
            raise package_missing(path, "pgenlib") from None
        self.imputed = holds_dosages(path, (variants, people))
        self._lock = threading.Lock()
        try:
            self._reader = pgenlib.PgenReader(
                str(path).encode(), raw_sample_ct=people, variant_ct=variants
            )
        except (RuntimeError, OSError) as error:
            raise CohortError("pgen-unreadable", str(path), str(error)) from None

    def rows(self, index: np.ndarray | slice) -> np.ndarray:
        if self.imputed:
            raise no_hard_calls(self.path)
        chosen = self._chosen(index)
        copies = np.empty((len(chosen), self.people), np.int8)
        if len(chosen):
            self._read(self._reader.read_list, chosen, copies)
        bits = packed(_CALL[np.where(copies < 0, 3, copies)])
        result = np.zeros((len(chosen), -(-self.width // WORD) * WORD), np.uint8)
        result[:, : self.width] = bits
        return result

    def dosages(self, index: np.ndarray | slice) -> np.ndarray:
        chosen = self._chosen(index)
        found = np.empty((len(chosen), self.people), np.float64)
        if len(chosen):
            self._read(self._reader.read_dosages_list, chosen, found)
        found[found < 0] = np.nan
        return found

    def _read(self, read: Any, chosen: np.ndarray, found: np.ndarray) -> None:
        try:
            with self._lock:
                read(chosen, found)
        except RuntimeError as error:
            raise CohortError("pgen-variant", str(self.path), f"is damaged ({error})") from None

    def _chosen(self, index: np.ndarray | slice) -> np.ndarray:
        return np.arange(self.variants, dtype=np.uint32)[index]


def holds_dosages(path: Path, expected: tuple[int, int] | None = None) -> bool:
    """Whether a file holds dosages. expected: variants and people, as the files beside it say."""
    try:
        with path.open("rb") as file:
            head = file.read(12)
            if head[:2] != _MAGIC or len(head) < 12 or head[2] == 1:
                raise CohortError("pgen-magic", str(path), "is no .pgen file (wrong first bytes)")
            told = (int.from_bytes(head[3:7], "little"), int.from_bytes(head[7:11], "little"))
            if expected is not None and told != expected:
                raise CohortError(
                    "pgen-size",
                    str(path),
                    f"holds {told[0]:,} variants of {told[1]:,} people, but .pvar and .psam name "
                    f"{expected[0]:,} and {expected[1]:,} (do they belong to it?)",
                )
            variants = told[0]
            if head[2] == _FIXED or head[2] in _FIXED_DOSAGES:
                return head[2] in _FIXED_DOSAGES
            if head[2] != _VARIABLE[0]:
                raise CohortError(
                    "pgen-mode",
                    str(path),
                    "its index is apart; `plink2 --make-pgen` rewrites it",
                )
            width = head[11] & 15
            if width < 4:  # half a byte a variant has no room for dosages
                return False
            if width > 7:
                return True  # unusual; dosages are not excluded
            allele_bytes, flags = (head[11] >> 4) & 3, head[11] >> 6 == 3
            file.seek(8 * -(-variants // _STRETCH), 1)
            for start in range(0, variants, _STRETCH):
                count = min(_STRETCH, variants - start)
                if (np.frombuffer(file.read(count), np.uint8) & _DOSAGE_BITS).any():
                    return True
                rest = count * (1 + (width & 3) + allele_bytes) + (-(-count // 8) if flags else 0)
                file.seek(rest, 1)
    except OSError as error:
        reason = (error.strerror or "not readable").lower()
        raise CohortError("pgen-unreadable", str(path), reason) from None
    return False
