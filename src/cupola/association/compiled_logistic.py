"""`reference.logistic_sums`, compiled: blocks of people that stay in the cache, and in each of them
four variants at a time, so that a column is read once for all four."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

from cupola.association.compiled import _REORDER, _decode, _exp

TOGETHER = 4  # variants


# numpy's error model: a check for division by zero would keep the loop from being vectorised.
@njit(cache=True, nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")
def _weights(beta, columns, genotype, told, y, weight, residual):
    """Logistic weights and residuals of one variant."""
    fixed, n = columns.shape
    slope = beta[fixed]
    for i in range(n):
        weight[i] = slope * genotype[i]
    for j in range(fixed):
        b = beta[j]
        for i in range(n):
            weight[i] += b * columns[j, i]
    for i in range(n):  # three loops: each is short enough to be vectorised
        weight[i] = min(max(weight[i], -700.0), 700.0)
    for i in range(n):
        weight[i] = 1.0 / (1.0 + _exp(-weight[i]))
    for i in range(n):
        p = weight[i]
        weight[i] = told[i] * p * (1.0 - p)
        residual[i] = told[i] * (y[i] - p)


@njit(inline="always")
def _dots(columns, vectors, out, at):
    """out[v, at + j] += columns[j] @ vectors[v], for four vectors, two columns at a time."""
    rows, n = columns.shape
    v0, v1, v2, v3 = vectors[0], vectors[1], vectors[2], vectors[3]
    j = 0
    while j + 2 <= rows:
        first, second = columns[j], columns[j + 1]
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
        for i in range(n):
            x, z = first[i], second[i]
            a0 += x * v0[i]
            a1 += x * v1[i]
            a2 += x * v2[i]
            a3 += x * v3[i]
            b0 += z * v0[i]
            b1 += z * v1[i]
            b2 += z * v2[i]
            b3 += z * v3[i]
        out[0, at + j] += a0
        out[1, at + j] += a1
        out[2, at + j] += a2
        out[3, at + j] += a3
        out[0, at + j + 1] += b0
        out[1, at + j + 1] += b1
        out[2, at + j + 1] += b2
        out[3, at + j + 1] += b3
        j += 2
    if j < rows:
        first = columns[j]
        a0 = a1 = a2 = a3 = 0.0
        for i in range(n):
            x = first[i]
            a0 += x * v0[i]
            a1 += x * v1[i]
            a2 += x * v2[i]
            a3 += x * v3[i]
        out[0, at + j] += a0
        out[1, at + j] += a1
        out[2, at + j] += a2
        out[3, at + j] += a3


@njit(cache=True, nogil=True, fastmath=_REORDER)
def _ends(genotype, told, weight, residual, gradient, information, spread):
    """What is left of one variant: its own row, and what its weights stand for. The weights become
    those of the genotype."""
    squares = people = slope = square = 0.0
    for i in range(genotype.shape[0]):
        squares += weight[i] * weight[i]
        people += told[i]
        slope += genotype[i] * residual[i]
        weight[i] *= genotype[i]
        square += genotype[i] * weight[i]
    spread[0] += squares
    spread[1] += people
    gradient[-1] += slope
    information[-1] += square


@njit(cache=True, nogil=True, fastmath=_REORDER)
def logistic_sums(rows, included, scale, columns, products, y, beta):
    """Over places for people in a row (4 a byte), in blocks: all but rows and beta have the blocks
    first. included: 1 for those tested, else 0, as in all else of theirs. columns: (blocks, p - 1,
    places). products: (blocks, p (p - 1) / 2, places), of pairs of columns, row by row of the upper
    triangle. Gives gradient and information (order: pairs of columns, each column with the
    genotype, the genotype with itself); and of the weights their squares, and how many people have
    one: (variants, 2)."""
    k, p = beta.shape
    blocks, pairs, n = products.shape
    whole = -(-k // TOGETHER) * TOGETHER  # what is beyond the last variant is not kept
    gradient = np.zeros((whole, p))
    information = np.zeros((whole, pairs + p))
    spread = np.zeros((whole, 2))
    genotype, told = np.empty((TOGETHER, n)), np.empty((TOGETHER, n))
    weight, residual = np.empty((TOGETHER, n)), np.empty((TOGETHER, n))
    for block in range(blocks):
        first, last = block * (n // 4), (block + 1) * (n // 4)
        for start in range(0, whole, TOGETHER):
            for v in range(TOGETHER):
                s = min(start + v, k - 1)
                row = rows[s, first:last]
                _decode(row, scale[block], included[block], genotype[v], told[v])
                part = (columns[block], genotype[v], told[v], y[block])
                _weights(beta[s], part[0], part[1], part[2], part[3], weight[v], residual[v])
            g, h = gradient[start : start + TOGETHER], information[start : start + TOGETHER]
            _dots(products[block], weight, h, 0)
            _dots(columns[block], residual, g, 0)
            for v in range(TOGETHER):
                at = start + v
                part = (genotype[v], told[v], weight[v], residual[v])
                _ends(part[0], part[1], part[2], part[3], gradient[at], information[at], spread[at])
            _dots(columns[block], weight, h, pairs)
    return gradient[:k], information[:k], spread[:k]
