"""Local statistics of a chunk of variants: compiled where numba is installed, else the reference.

Install numba with `pip install 'cupola[gwas]'`; without it everything works, slowly.
"""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.association import reference
from cupola.association.bed import MAPPED, MISSING, WORD, Bed, mask_of, unpacked
from cupola.association.many_threads import over

if TYPE_CHECKING:
    from cupola.association.genotypes import Genotypes

_CHUNK = 4096
_PEOPLE = 2048  # of a logistic regression, computed at a time: their columns stay in the cache


@lru_cache(maxsize=1)
def has_numba() -> bool:
    return find_spec("numba") is not None


def _compiled() -> Any:
    """Imported when it is needed: numba takes a while."""
    from cupola.association import compiled

    return compiled


def genotype_counts(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    if not has_numba():
        return reference.genotype_counts(rows, chosen)
    found = np.zeros((len(rows), len(chosen), 3), np.int64)
    busy = chosen.any(axis=1)  # haploid people are few, mostly none
    if busy.any():
        masks = np.stack([mask_of(group) for group in chosen[busy]])
        some = found if busy.all() else np.empty((len(rows), len(masks), 3), np.int64)
        words, count = _words(rows), _compiled().genotype_counts
        over(len(rows), lambda part: count(words[part], masks, some[part]))
        found[:, busy] = some
    return found


def allele_counts(bed: Genotypes, local: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """`reference.allele_counts` of rows of a file, without a copy of its calls; int32."""
    parts = (local[i : i + _CHUNK] for i in range(0, len(local), _CHUNK))
    if not has_numba() or sys.byteorder != "little":
        return np.concatenate([reference.allele_counts(bed.rows(p), chosen) for p in parts])
    if not isinstance(bed, Bed):
        counted = np.concatenate([genotype_counts(bed.rows(p), chosen) for p in parts])
        two, one, none = np.moveaxis(counted, 2, 0)
        return np.stack([2 * two + one, 2 * (two + one + none)], axis=2).astype(np.int32)
    found = np.empty((len(local), len(chosen), 2), np.int32)
    masks = np.stack([mask_of(group) for group in chosen])
    at, count = local.astype(np.int64), _compiled().allele_counts
    step = max(_CHUNK, MAPPED // bed.width)
    for start in range(0, len(at), step):
        rows, into = at[start : start + step], found[start : start + step]
        over(len(rows), partial(_count, count, bed, masks, rows, into))
        bed.was_read(len(rows) * bed.width)
    return found


def _count(
    count: Any, bed: Bed, masks: np.ndarray, rows: np.ndarray, found: np.ndarray, part: slice
) -> None:
    count(bed.flat, bed.width, rows[part], masks, found[part])


def call_sums(rows: np.ndarray, two: np.ndarray, one: np.ndarray) -> np.ndarray:
    if not has_numba():
        return reference.call_sums(rows, two, one)
    width = -(-len(two) // 4)
    two, one = _padded(two, 4 * width), _padded(one, 4 * width)
    found, add = np.empty((len(rows), two.shape[1])), _compiled().call_sums

    def work(part: slice) -> None:
        found[part] = add(np.ascontiguousarray(rows[part, :width].T), two, one)

    over(len(rows), work)
    return found


def missing_sums(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    if not has_numba():
        return reference.missing_sums(rows, values)
    found, add = np.empty((len(rows), values.shape[1])), _compiled().missing_sums
    words, values = _words(rows), _padded(values, 4 * rows.shape[1])

    def work(part: slice) -> None:
        found[part] = add(words[part], values)

    over(len(rows), work)
    return found


def without_half_calls(rows: np.ndarray, haploid: np.ndarray) -> np.ndarray:
    """A call of one copy (binary 10) turns missing (01) where the mask says."""
    words = _words(rows)
    mask = mask_of(haploid)
    half = (words >> np.uint64(1)) & ~words & mask
    return (words ^ (half | (half << np.uint64(1)))).view(np.uint8)


def logistic_sums(
    rows: np.ndarray,
    people: np.ndarray,
    scale: np.ndarray,
    fixed: np.ndarray,
    y: np.ndarray,
    beta: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not has_numba():
        return reference.logistic_sums(rows, people, scale, fixed, y, beta)
    from cupola.association.compiled_logistic import logistic_sums as add

    blocks = max(1, -(-4 * rows.shape[1] // _PEOPLE))
    places = -(-4 * rows.shape[1] // (32 * blocks)) * 32
    whole = np.zeros((fixed.shape[1] + 3, blocks * places))
    whole[:, people] = np.vstack([fixed.T, y, scale, np.ones(len(people))])
    whole = np.ascontiguousarray(whole.reshape(-1, blocks, places).transpose(1, 0, 2))
    columns = np.ascontiguousarray(whole[:, :-3])
    y, scale, included = (np.ascontiguousarray(whole[:, i]) for i in (-3, -2, -1))
    i, j = np.triu_indices(columns.shape[1])
    facts = (included, scale, columns, columns[:, i] * columns[:, j], y)
    rows = np.pad(rows, ((0, 0), (0, blocks * places // 4 - rows.shape[1])))
    beta, (k, p) = np.ascontiguousarray(beta), beta.shape
    found = np.empty((k, p)), np.empty((k, p * (p + 1) // 2)), np.empty((k, 2))

    def work(part: slice) -> None:
        for whole, some in zip(found, add(rows[part], *facts, beta[part])):
            whole[part] = some

    over(k, work, least=8)
    gradient, information, spread = found
    return gradient, information[:, _triangle_order(p)], spread


def saddle_sums(
    rows: np.ndarray,
    people: np.ndarray,
    scale: np.ndarray,
    fixed: np.ndarray,
    chance: np.ndarray,
    tilt: np.ndarray,
    at: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    if not has_numba():
        return reference.saddle_sums(rows, people, scale, fixed, chance, tilt, at)
    from cupola.association.compiled_saddle import saddle_sums as add

    whole = np.zeros((fixed.shape[1] + 3, 4 * rows.shape[1]))
    whole[:, people] = np.vstack([fixed.T, chance, scale, np.ones(len(people))])
    columns = np.ascontiguousarray(whole[:-3])
    rows, tilt, at = (np.ascontiguousarray(array) for array in (rows, tilt, at))
    found, spread = np.empty((len(rows), 3, 2)), np.empty((len(rows), 2, 3))
    chance, scale, included = whole[-3:]

    def work(part: slice) -> None:
        parts = (rows[part], included, scale, columns, chance, tilt[part], at[part])
        add(*parts, found[part], spread[part])

    over(len(rows), work, least=8)
    return found, spread


@lru_cache(maxsize=16)
def _triangle_order(p: int) -> np.ndarray:
    """Where the compiled kernel puts the entries of a whole upper triangle."""
    i, j = np.triu_indices(p - 1)
    place = {(a, b): at for at, (a, b) in enumerate(zip(i.tolist(), j.tolist()))}
    place |= {(a, p - 1): len(i) + a for a in range(p)}
    return np.array([place[pair] for pair in zip(*(x.tolist() for x in np.triu_indices(p)))])


def missing_by_person(bed: Genotypes) -> np.ndarray:
    """How many calls each person misses, over all variants."""
    count = np.zeros(4 * (-(-bed.width // WORD) * WORD), np.int64)
    for start in range(0, bed.variants, _CHUNK):
        rows = bed.rows(slice(start, start + _CHUNK))
        if has_numba():
            _compiled().missing_by_person(_words(rows), count)
        else:
            count += np.count_nonzero(unpacked(rows, len(count)) == MISSING, axis=0)
    return count[: bed.people]


def _words(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows).view("<u8").astype(np.uint64, copy=False)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    result = np.zeros((length, values.shape[1]))
    result[: len(values)] = values
    return result
