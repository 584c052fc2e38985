"""Genotypes in PLINK's .bed format: two bits a call, mapped into memory and read in chunks.

A row is a variant; the lowest two bits of its first byte are the first person's call:
0 two copies of a1, 1 missing, 2 one copy, 3 none.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from cupola.association.files import CohortError

MAGIC = b"\x6c\x1b\x01"
COPIES = np.array([2, 0, 1, 0], np.int8)  # of a1, by call
MISSING = 1
_DOSAGE = np.array([2.0, np.nan, 1.0, 0.0])
MAPPED = 1 << 26  # bytes of a file that are mapped into memory before they are given back
_AROUND = 1 << 16  # bytes that the system maps around one that is read
WORD = 8  # bytes: rows handed to kernels are whole 64-bit words


class Bed:
    """Calls of `people` people at `variants` variants."""

    imputed = False

    def __init__(self, path: Path, people: int, variants: int) -> None:
        self.path, self.people, self.variants = path, people, variants
        self.width = -(-people // 4)
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                magic = file.read(3)
        except OSError as error:
            reason = (error.strerror or "not readable").lower()
            raise CohortError("bed-unreadable", str(path), reason) from None
        if magic[:2] != MAGIC[:2]:
            raise CohortError("bed-magic", str(path), "is no .bed file (wrong first bytes)")
        if magic != MAGIC:
            raise CohortError(
                "bed-order", str(path), "is in the old order, person by person: "
                "`plink --make-bed` rewrites it"
            )  # fmt: skip
        expected = 3 + variants * self.width
        if size != expected:
            kind = "truncated" if size < expected else "too long"
            raise CohortError(
                "bed-size",
                str(path),
                f"is {kind}: {size:,} bytes, but {variants:,} variants of {people:,} people take "
                f"{expected:,} (do .bim and .fam belong to it?)",
            )
        self._rows = np.memmap(path, np.uint8, "r", offset=3, shape=(variants, self.width))
        self._read = 0

    def was_read(self, size: int) -> None:
        """Some bytes more are mapped. What was read is given back now and then: a file larger than
        memory would fill it, and look as if this process did."""
        self._read += size
        if self._read >= MAPPED and hasattr(mmap, "MADV_DONTNEED"):
            self._rows._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
            self._read = 0

    @property
    def flat(self) -> np.ndarray:
        """All calls, `width` bytes a variant, as they are in the file: what is beyond the last
        person of a variant may be anything."""
        return np.asarray(self._rows).reshape(-1)

    def rows(self, index: np.ndarray | slice) -> np.ndarray:
        """Packed calls (k, words * 8), uint8; bits beyond the last person are 0."""
        index = stretch(index)
        if isinstance(index, slice):
            index, each = np.arange(*index.indices(self.variants)), self.width
        else:  # rows that are far apart: around each some pages more are mapped
            each = max(self.width, _AROUND)
        result = np.zeros((len(index), -(-self.width // WORD) * WORD), np.uint8)
        step = max(1, MAPPED // each)
        for start in range(0, len(index), step):
            part = index[start : start + step]
            result[start : start + step, : self.width] = self._rows[stretch(part)]
            self.was_read(len(part) * each)
        if self.people % 4:  # PLINK writes zeros there; others may not
            result[:, self.width - 1] &= (1 << 2 * (self.people % 4)) - 1
        return result

    def dosages(self, index: np.ndarray | slice) -> np.ndarray:
        """Copies of a1, (k, people) float64; NaN without a call."""
        return _DOSAGE[unpacked(self.rows(index), self.people)]


def stretch(index: np.ndarray | slice) -> np.ndarray | slice:
    """Rows that follow one another as a slice, which copies nothing."""
    if isinstance(index, slice) or len(index) == 0 or (np.diff(index) != 1).any():
        return index
    return slice(int(index[0]), int(index[-1]) + 1)


def unpacked(rows: np.ndarray, people: int) -> np.ndarray:
    """Calls 0 to 3 as (k, people) uint8: the obvious form."""
    calls = (rows[:, :, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    return calls.reshape(len(rows), -1)[:, :people]


def packed(calls: np.ndarray) -> np.ndarray:
    """The inverse of `unpacked`, without the padding to words: (k, ceil(people / 4))."""
    k, people = calls.shape
    full = np.zeros((k, -(-people // 4) * 4), np.uint8)
    full[:, :people] = calls
    quads = full.reshape(k, -1, 4) << np.array([0, 2, 4, 6], np.uint8)
    return np.bitwise_or.reduce(quads, axis=2).astype(np.uint8)


def write_bed(path: Path, calls: np.ndarray) -> None:
    """A .bed file of calls (variants, people)."""
    with path.open("wb") as file:
        file.write(MAGIC)
        file.write(packed(calls).tobytes())


def mask_of(chosen: np.ndarray) -> np.ndarray:
    """People as a packed mask in a call's lower bit, in whole words, uint64."""
    bits = packed(np.asarray(chosen, np.uint8)[None])[0]
    full = np.zeros(-(-len(bits) // WORD) * WORD, np.uint8)
    full[: len(bits)] = bits
    return full.view("<u8").astype(np.uint64)
