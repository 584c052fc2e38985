"""`reference.saddle_sums`, compiled."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from cupola.association.compiled import _COPIES, _REORDER, _TOLD, _as_bits, _as_float, _exp

_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_ROUND = 1.5 * 2.0**52
_ROUND_BITS = 0x4338000000000000
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10


@njit(inline="always")
def _log(x):
    """The logarithm of a positive normal number, without branches: loops over it are vectorised."""
    bits = _as_bits(x)
    power = (bits - _HALF) >> 52
    m = _as_float(bits - (power << 52))  # from sqrt(1/2) to sqrt(2)
    f = (m - 1.0) / (m + 1.0)
    s = f * f
    value = 0.08695652173913043  # 2 / 23
    value = value * s + 0.09523809523809523
    value = value * s + 0.10526315789473684
    value = value * s + 0.11764705882352941
    value = value * s + 0.13333333333333333
    value = value * s + 0.15384615384615385
    value = value * s + 0.18181818181818182
    value = value * s + 0.2222222222222222
    value = value * s + 0.2857142857142857
    value = value * s + 0.4
    value = value * s + 0.6666666666666666
    value = value * s + 2.0
    whole = _as_float(power + _ROUND_BITS) - _ROUND
    return whole * _LN2_HIGH + (value * f + whole * _LN2_LOW)


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")
def _own(row, included, scale, columns, tilt, genotype, told):
    """The genotype less its regression on the columns; a missing call has its place-holder."""
    fixed, n = columns.shape
    for byte in range(row.shape[0]):
        v = row[byte]
        for j in range(4):
            at = 4 * byte + j
            told[at] = _TOLD[v, j] * included[at]
            genotype[at] = _COPIES[v, j] * scale[at] + (included[at] - told[at]) * tilt[fixed]
    for j in range(fixed):
        c = tilt[j]
        for i in range(n):
            genotype[i] -= c * columns[j, i]


# No reordering here: it would undo the rounding in `_exp` and `_log`.
@njit(cache=True, nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")
def _terms(genotype, chance, t, value, shift, weight):
    """Of one variant at one point, person by person. Who is not included has genotype and chance
    0, and adds 0."""
    for i in range(genotype.shape[0]):
        base = chance[i]
        power = min(max(genotype[i] * t, -700.0), 700.0)
        raised = base * _exp(power)
        likely = 1.0 - base + raised
        p = raised / likely
        weight[i] = p * (1.0 - p)
        shift[i] = p - base
        value[i] = _log(likely) - base * power


@njit(cache=True, nogil=True, fastmath=_REORDER)
def _sums(genotype, told, terms, found, spread, at):
    value, shift, weight = terms
    a = b = c = total = squares = people = 0.0
    for i in range(genotype.shape[0]):
        g, w = genotype[i], weight[i]
        a += value[i]
        b += g * shift[i]
        c += g * g * w
        w *= told[i]
        total += w
        squares += w * w
        people += told[i]
    found[0, at] = a
    found[1, at] = b
    found[2, at] = c
    spread[at, 0] = total
    spread[at, 1] = squares
    spread[at, 2] = people


@njit(cache=True, nogil=True)
def saddle_sums(rows, included, scale, columns, chance, tilt, at, found, spread):
    """included: 1 for those tested, else 0, as in all else of theirs. columns: (c, places). found:
    (variants, 3, 2), spread: (variants, 2, 3), to be filled."""
    n = included.shape[0]
    genotype, told = np.empty(n), np.empty(n)
    value, shift, weight = np.empty(n), np.empty(n), np.empty(n)
    for s in range(rows.shape[0]):
        _own(rows[s], included, scale, columns, tilt[s], genotype, told)
        for j in range(2):
            _terms(genotype, chance, at[s, j], value, shift, weight)
            _sums(genotype, told, (value, shift, weight), found[s], spread[s], j)
