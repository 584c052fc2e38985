"""Linear algebra whose bits are the same on every processor, for many small matrices at once.

Sites repeat the coordinator's steps and compare its next question with theirs bit for bit. LAPACK,
BLAS, `einsum` and sums over an axis choose their order, and fused operations, by the processor;
here are only +, -, *, /, each by itself, element by element, in an order that is written down.
So a matrix has the same inverse alone and among others, however it lies in memory.
"""

from __future__ import annotations

import numpy as np

_CACHE = 1 << 15  # numbers worked on at once: they stay in the processor's cache
_STRIP = 64  # rows of an elimination at once
_SWEEPS = 40  # of rotations, at most; ten are enough for matrices of some hundred rows
_NEGLIGIBLE = 1e-27  # squares beside the diagonal, over squares on it


def inverse(matrices: np.ndarray) -> np.ndarray:
    """Inverses of symmetric positive definite matrices (k, p, p); NaN where one is not."""
    k, p = matrices.shape[:2]
    found = np.empty((p, p, k))  # matrices last: each operation is over many, side by side
    block = max(64, _CACHE // (p * p))
    for start in range(0, k, block):
        part = slice(start, start + block)
        work = np.array(matrices[part].transpose(1, 2, 0), np.float64, order="C", copy=True)
        found[:, :, part] = _gauss_jordan(work)
    return found.transpose(2, 0, 1)


def _gauss_jordan(a: np.ndarray) -> np.ndarray:
    """The inverses of a (p, p, k), in its place. Positive definite matrices need no pivoting."""
    p, _, k = a.shape
    fine = np.ones(k, bool)
    product = np.empty_like(a)
    with np.errstate(all="ignore"):
        for j in range(p):
            pivot, column = a[j, j].copy(), a[:, j].copy()
            fine &= pivot > 0
            row = a[j] / pivot
            np.multiply(column[:, None], row[None], out=product)
            a -= product
            a[j] = row
            a[:, j] = -column / pivot
            a[j, j] = 1.0 / pivot
    a[:, :, ~fine] = np.nan
    return a


def times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Matrices (k, p, p) times vectors (k, p), added up from the first column to the last."""
    found = matrices[:, :, 0] * vectors[:, :1]
    for j in range(1, vectors.shape[1]):
        found += matrices[:, :, j] * vectors[:, j : j + 1]
    return found


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sums of products of the rows of (k, p), (k,), added up from the first to the last."""
    found = a[:, 0] * b[:, 0]
    for j in range(1, a.shape[1]):
        found += a[:, j] * b[:, j]
    return found


def total(values: np.ndarray) -> np.ndarray:
    """Sums over the first axis, by halves: the second half is added to the first until one row is
    left. Accurate, and in the same order everywhere."""
    values = np.array(values, np.float64, order="C", copy=True)
    rows = len(values)
    if rows == 0:
        return np.zeros(values.shape[1:])
    while rows > 1:
        half = (rows + 1) // 2
        values[: rows - half] += values[half:rows]
        rows = half
    return values[0]


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a'b, (p, q), of two tall matrices (m, p) and (m, q)."""
    found = np.empty((a.shape[1], b.shape[1]))
    for i in range(a.shape[1]):
        found[i] = total(a[:, i : i + 1] * b)
    return found


def combined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b, (m, q), of a tall matrix (m, p) and a small one (p, q), added up from the first column
    to the last."""
    found = np.zeros((a.shape[0], b.shape[1]))
    for j in range(a.shape[1]):
        found += a[:, j : j + 1] * b[j]
    return found


def solved(matrices: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solutions (k, p, q) of symmetric positive definite systems (k, p, p), right sides (k, p, q).

    Elimination without pivots, a third of the work of an inverse. Of a matrix that is not positive
    definite the solution is NaN."""
    k, p = matrices.shape[:2]
    found = np.empty((p, right.shape[2], k))
    block = max(1, _CACHE // (p * p))
    for start in range(0, k, block):
        part = slice(start, start + block)
        a = np.array(matrices[part].transpose(1, 2, 0), np.float64, order="C", copy=True)
        b = np.array(right[part].transpose(1, 2, 0), np.float64, order="C", copy=True)
        found[:, :, part] = _eliminated(a, b)
    return found.transpose(2, 0, 1)


def _eliminated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solutions (p, q, k) of (p, p, k) and (p, q, k), in their place. Of `a` only the upper
    triangle is used below the row that is worked on."""
    p, _, k = a.shape
    fine = np.ones(k, bool)
    with np.errstate(all="ignore"):
        for j in range(p):
            fine &= a[j, j] > 0
            share = a[j, j + 1 :] / a[j, j]  # of row j in those below: the matrix is symmetric
            for start in range(0, p - j - 1, _STRIP):  # what lies left of the diagonal stays
                strip = slice(start, start + _STRIP)
                here, row = slice(j + 1 + start, j + 1 + start + _STRIP), a[j, j + 1 + start :]
                a[here, j + 1 + start :] -= share[strip, None] * row[None]
            b[j + 1 :] -= share[:, None] * b[j][None]
        for j in range(p - 1, -1, -1):
            b[j] /= a[j, j]
            b[:j] -= a[:j, j, None] * b[j][None]
    b[:, :, ~fine] = np.nan
    return b


def eigen(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of a symmetric matrix (p, p), the largest first, and their vectors as columns.

    Jacobi's rotations (Golub and Van Loan, section 8.5), in rounds of pairs that share no index:
    those of a round are one operation over all rows, then one over all columns. Each vector's
    largest entry is positive.
    """
    p = len(matrix)
    even = p + p % 2
    a = np.zeros((even, even))  # an odd matrix has a row and column of zeros on top
    a[:p, :p] = matrix
    vectors = np.eye(even)
    for _ in range(_SWEEPS):
        before = total(total((a - np.diag(np.diagonal(a))) ** 2))
        if before <= _NEGLIGIBLE * total(np.diagonal(a) ** 2):
            break
        for i, j in _rounds(even):
            _rotate(a, vectors, i, j)
    values = np.diagonal(a)[:p].copy()
    order = np.argsort(-values, kind="stable")
    vectors = vectors[:p, :p][:, order]
    largest = vectors[np.argmax(np.abs(vectors), axis=0), np.arange(p)]
    return values[order], vectors * np.where(largest < 0, -1.0, 1.0)


def _rotate(a: np.ndarray, vectors: np.ndarray, i: np.ndarray, j: np.ndarray) -> None:
    """Make a[i, j] zero, for pairs that share no index, in place."""
    off = a[i, j]
    with np.errstate(all="ignore"):
        theta = (a[j, j] - a[i, i]) / (2 * off)
        t = np.where(theta < 0, -1.0, 1.0) / (np.abs(theta) + np.sqrt(theta * theta + 1))
    t = np.where(np.isfinite(t) & (off != 0), t, 0.0)
    c = 1 / np.sqrt(t * t + 1)
    s = t * c
    for x in (a, a.T, vectors.T):
        upper, lower = x[i].copy(), x[j].copy()
        x[i] = c[:, None] * upper - s[:, None] * lower
        x[j] = s[:, None] * upper + c[:, None] * lower


def _rounds(p: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """All pairs of p (even) indices, in p - 1 rounds of p / 2, as a tournament is planned."""
    ring = list(range(p))
    found = []
    for _ in range(p - 1):
        first, second = np.array(ring[: p // 2]), np.array(ring[: p // 2 - 1 : -1])
        found.append((np.minimum(first, second), np.maximum(first, second)))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found
