"""Relatives within a cohort, by KING-robust kinship (Manichaikul et al. 2010), as plink2 has it.

Of two people with a call, N_het(i) and N_het(j) count where each is heterozygous, N_both where both
are, N_opposite where they are homozygous for different alleles:

    kinship = 1/2 - (N_het(i) + N_het(j) - 2 N_both + 4 N_opposite) / (4 min(N_het(i), N_het(j)))

About 1/2 for one person twice, 1/4 for parents and siblings, 1/8 for grandparents, 1/16 for
cousins; allele frequencies are not needed, so that ancestry does not matter. It is between people
of one cohort: across cohorts nobody could compute it from sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cupola.association.bed import MISSING, unpacked
from cupola.association.design import AUTOSOME, kinds
from cupola.association.files import Variants
from cupola.association.genotypes import Genotypes
from cupola.association.kernels import has_numba

MOST = 100_000  # variants: more tell little more of a pair
_CHUNK = 4096
_HOM, _HET, _OTHER = 0, 2, 3  # calls


@dataclass(frozen=True)
class Pair:
    """Two people, by their places in the file."""

    first: int
    second: int
    kinship: float


def related(bed: Genotypes, variants: Variants, people: np.ndarray, least: float) -> list[Pair]:
    """Pairs of `people` (places in the file) with at least this kinship, over the autosomes."""
    rows = np.flatnonzero((variants.chromosome > 0) & (kinds(variants.chromosome) == AUTOSOME))
    if len(rows) > MOST:
        rows = rows[np.linspace(0, len(rows) - 1, MOST).astype(np.int64)]
    if has_numba():
        from cupola.association import compiled_pairs

        found = compiled_pairs.related(_planes(bed, rows, people), least)
    else:
        calls = [unpacked(bed.rows(rows[i : i + _CHUNK]), bed.people)[:, people]
                 for i in range(0, len(rows), _CHUNK)]  # fmt: skip
        found = slow_related(np.concatenate(calls or [np.zeros((0, len(people)), np.uint8)]), least)
    return [Pair(int(people[int(i)]), int(people[int(j)]), float(k)) for i, j, k in found]


def slow_related(calls: np.ndarray, least: float) -> np.ndarray:
    """The obvious form: (pairs, 3), two columns of `calls` and their kinship."""
    found = []
    for i in range(calls.shape[1]):
        for j in range(i + 1, calls.shape[1]):
            a, b = calls[:, [i, j]][(calls[:, [i, j]] != MISSING).all(axis=1)].T
            one, two = (a == _HET).sum(), (b == _HET).sum()
            opposite = ((a == _HOM) & (b == _OTHER)).sum() + ((a == _OTHER) & (b == _HOM)).sum()
            both = ((a == _HET) & (b == _HET)).sum()
            if min(one, two) > 0:
                kinship = 0.5 - (one + two - 2 * both + 4 * opposite) / (4 * min(one, two))
                if kinship >= least:
                    found.append((i, j, kinship))
    return np.array(found, float).reshape(-1, 3)


def _planes(bed: Genotypes, rows: np.ndarray, people: np.ndarray) -> np.ndarray:
    """(people, words, 3) uint64, a bit a variant: heterozygous, and either homozygous call."""
    words = -(-_CHUNK // 64)
    whole = -(-len(rows) // _CHUNK) * words
    planes = np.zeros((len(people), whole, 3), np.uint64)
    for number, start in enumerate(range(0, len(rows), _CHUNK)):
        calls = unpacked(bed.rows(rows[start : start + _CHUNK]), bed.people)[:, people].T
        part = slice(number * words, (number + 1) * words)
        for plane, call in enumerate((_HET, _HOM, _OTHER)):
            bits = np.packbits(calls == call, axis=1, bitorder="little")
            padded = np.zeros((len(people), 8 * words), np.uint8)
            padded[:, : bits.shape[1]] = bits
            planes[:, part, plane] = padded.view("<u8")
    return planes


def left_out(pairs: Sequence[Pair]) -> list[int]:
    """Whom to leave out so that no pair is left: who has most relatives first; of several the one
    that comes last in the file."""
    relatives: dict[int, set[int]] = {}
    for pair in pairs:
        relatives.setdefault(pair.first, set()).add(pair.second)
        relatives.setdefault(pair.second, set()).add(pair.first)
    found = []
    while any(relatives.values()):
        one = max(relatives, key=lambda person: (len(relatives[person]), person))
        for other in relatives.pop(one):
            relatives[other].discard(one)
        found.append(one)
    return sorted(found)


def as_lines(pairs: Sequence[Pair], person: Sequence[str], gone: Sequence[int]) -> bytes:
    """A table for the cohort's own eyes."""
    out = set(gone)
    rows = ["FID1\tIID1\tFID2\tIID2\tKINSHIP\tLEFT_OUT"]
    for pair in sorted(pairs, key=lambda pair: -pair.kinship):
        ids = [part for i in (pair.first, pair.second) for part in person[i].split(" ", 1)]
        names = [person[i] for i in (pair.first, pair.second) if i in out]
        rows.append("\t".join([*ids, f"{pair.kinship:.6f}", ", ".join(names)]))
    return "\n".join([*rows, ""]).encode()
