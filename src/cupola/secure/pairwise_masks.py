"""Many masks over many arrays: all integers of one width lie side by side, so that a pair of sites
derives a few keys however many arrays there are, and a piece stays in the cache for all masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cupola.secure.encoding import Entry, Layout
from cupola.secure.envelope import Statement
from cupola.secure.mask_stream import P, add_mask, mask_key, mask_residue, stream

Masks = Sequence[tuple[bytes, int]]  # seeds and signs
_PIECE = 1 << 20  # bytes
_RESIDUE = 48  # bytes: uniform modulo the prime, up to 2^-257


class Table:
    """The integers of a layout and their checksums (residues), to be masked and added up.

    arrays: of each entry, flat; they start as zeros.
    """

    def __init__(self, layout: Layout) -> None:
        self.arrays: dict[Entry, np.ndarray] = {}
        self.checks: dict[Entry, int] = dict.fromkeys(layout, 0)
        self._flat: dict[int, np.ndarray] = {}
        for bits in sorted({entry.bits for entry in layout}):
            same = [entry for entry in layout if entry.bits == bits]
            self._flat[bits] = np.zeros(sum(e.size for e in same), same[0].dtype)
            parts = np.split(self._flat[bits], np.cumsum([e.size for e in same])[:-1])
            self.arrays |= dict(zip(same, parts, strict=True))

    def mask(self, statement: Statement, masks: Masks) -> None:
        """Add masks over everything, each with its sign."""
        for bits, flat in self._flat.items():
            keys = [(_key(statement, seed, f"#int{bits}"), sign) for seed, sign in masks]
            size = _PIECE * 8 // bits
            for start in range(0, flat.size, size):
                for key, sign in keys:
                    add_mask(flat[start : start + size], key, start, sign)
        for seed, sign in masks:
            wide = stream(_key(statement, seed, "#checks"), 0, _RESIDUE * len(self.checks))
            for number, entry in enumerate(self.checks):
                part = wide[number * _RESIDUE : (number + 1) * _RESIDUE]
                self._check(entry, sign * int.from_bytes(part, "little"))

    def mask_some(self, statement: Statement, entries: Iterable[Entry], masks: Masks) -> None:
        """Add masks over some of the arrays."""
        for entry in entries:
            for seed, sign in masks:
                key = _key(statement, seed, entry.name)
                add_mask(self.arrays[entry], key, sign=sign)
                self._check(entry, sign * mask_residue(key))

    def _check(self, entry: Entry, residue: int) -> None:
        self.checks[entry] = (self.checks[entry] + residue) % P


def _key(statement: Statement, seed: bytes, array: str) -> bytes:
    about: dict[str, Any] = {
        "study": statement.study,
        "step": statement.step,
        "attempt": statement.attempt,
    }
    return mask_key(seed, **about, array=array)
