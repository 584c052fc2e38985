"""The minimiser of a regularised logistic loss, to a gradient norm that is certain."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from cupola.errors import DataError

DIRECT = 512  # parameters up to which a Newton system is factorised


def minimise(
    rows: np.ndarray,
    sign: np.ndarray,
    w0: np.ndarray,
    mu: float,
    tolerance: float,
    reach: float,
    b: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Damped Newton until the gradient is surely below `tolerance`; the gradient norm decides."""
    n, p = rows.shape

    def gradient(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        miss = expit(-sign * (rows @ w))
        return -(rows.T @ (sign * miss)) / n + mu * (w - w0) + b, miss

    w = w0.copy()
    g, miss = gradient(w)
    size = np.linalg.norm(g)
    goal = tolerance * 8 / 9  # the ninth part is rounding, see _tolerance
    for _ in range(500):
        if size <= goal and np.linalg.norm(w) <= reach:  # the bound on rounding holds within reach
            return w
        curvature = miss * (1 - miss) / n
        if p <= DIRECT:
            hessian = (rows.T * curvature) @ rows
            hessian.flat[:: p + 1] += mu
            step = np.linalg.solve(hessian, -g)
        else:
            step = _conjugate(rows, curvature, mu, -g)
        length = 1.0
        while True:
            trial = w + length * step
            new, its_miss = gradient(trial)
            its_size = np.linalg.norm(new)
            if its_size <= (1 - 0.1 * length) * size or length < 1e-9:
                break
            length /= 2
        w, g, miss, size = trial, new, its_miss, its_size
    # Not reached for finite rows: the tolerance is above what rounding can do to Newton's method.
    raise DataError("the minimiser was not found to the accounted tolerance; nothing is released")


def _conjugate(rows: np.ndarray, curvature: np.ndarray, mu: float, right: np.ndarray) -> np.ndarray:
    """Solve (X' diag(curvature) X + mu) step = right to a tenth of a per cent."""
    step = np.zeros_like(right)
    residual, direction = right.copy(), right.copy()
    squared = residual @ residual
    stop = 1e-6 * squared
    for _ in range(10 * len(right)):
        if squared <= stop:
            break
        turned = rows.T @ (curvature * (rows @ direction)) + mu * direction
        ahead = squared / (direction @ turned)
        step += ahead * direction
        residual -= ahead * turned
        before, squared = squared, residual @ residual
        direction = residual + (squared / before) * direction
    return step
