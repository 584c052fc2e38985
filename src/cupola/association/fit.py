"""From pooled sums to coefficients: least squares, Newton steps, and when there is no answer.

Many variants at once: matrices are (variants, p, p), the genotype is the last column. Sites repeat
these steps bit for bit: see `arithmetic` for what may be used here.
"""

from __future__ import annotations

import numpy as np

from cupola.association.portable_algebra import dot, inverse, times

OK, MONOMORPHIC, COLLINEAR, SEPARATED, TOO_FEW, FIRTH, WITHHELD, SCORE, SADDLE = range(9)
MEANINGS = (
    "",
    "one allele among those tested",
    "columns are collinear",
    "no finite estimate (separated, or no convergence)",
    "fewer people than columns",
    "Firth's penalised likelihood",
    "withheld by a cohort: weights on too few people, or few without a call (limits)",
    "score test",
    "score test, saddle-point approximation",
)
SCORED = (SCORE, SADDLE)  # which are no reason for having no result
METHODS = ("WALD", *["NA"] * 4, "FIRTH", "NA", "SCORE", "SPA")  # of a table's column
# A step of 0.1 that gains 1e-6 belongs to a standard error of 70: none is so large by itself.
_SHORT, _FLAT = 0.1, 1e-6
ALIKE = 0.999  # correlation from which PLINK calls two columns collinear


def symmetric(upper: np.ndarray, p: int) -> np.ndarray:
    """Matrices (k, p, p) from upper triangles (k, p (p + 1) / 2), row by row."""
    i, j = np.triu_indices(p)
    matrix = np.zeros((*upper.shape[:-1], p, p))
    matrix[..., i, j] = upper
    matrix[..., j, i] = upper
    return matrix


def trouble(products: np.ndarray, people: np.ndarray, vif: float) -> np.ndarray:
    """Which variants have no answer, uint8: as PLINK checks before it fits.

    products: (k, p, p), sums of products of columns over people, maybe weighted; column 0 is the
    intercept. A column without variance, a correlation beyond 0.999 or a variance inflation beyond
    `vif` is collinear.
    """
    k, p = len(products), products.shape[-1]
    status = np.zeros(k, np.uint8)
    count = products[:, 0, 0]
    safe = np.where(count > 0, count, 1.0)
    mean = products[:, 0, 1:] / safe[:, None]
    centred = products[:, 1:, 1:] - safe[:, None, None] * mean[:, :, None] * mean[:, None, :]
    variance = np.diagonal(centred, axis1=1, axis2=2)
    # Rounding leaves some 1e-16 of the squares, 32 bits a few 1e-9 of them; where nobody carries
    # an allele, some 1e-16 of a person.
    squares = np.diagonal(products, axis1=1, axis2=2)[:, 1:]
    flat = variance <= 1e-7 * squares + 1e-10 * safe[:, None]
    status[flat[:, :-1].any(axis=1)] = COLLINEAR
    status[flat[:, -1]] = MONOMORPHIC
    status[people <= p] = TOO_FEW
    ready = np.flatnonzero(status == OK)
    if len(ready):
        width = np.sqrt(variance[ready])
        correlation = centred[ready] / (width[:, :, None] * width[:, None, :])
        off = np.abs(correlation - np.eye(p - 1))
        off[:, range(p - 1), range(p - 1)] = 0
        alike = off.max(axis=(1, 2)) > ALIKE
        status[ready[alike]] = COLLINEAR
        ready, correlation = ready[~alike], correlation[~alike]
        inflated = np.diagonal(inverse(correlation), axis1=1, axis2=2)
        bad = ~(inflated <= vif).all(axis=1) | (inflated < 0).any(axis=1)
        status[ready[bad]] = COLLINEAR
    return status


def least_squares(
    products: np.ndarray, with_y: np.ndarray, y_square: np.ndarray, people: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and standard errors (k, p) from X'X, X'y and y'y."""
    inverted = inverse(products)
    beta = times(inverted, with_y)
    left = y_square - dot(beta, with_y)
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = np.maximum(left, 0) / (people - products.shape[-1])
        error = np.sqrt(noise[:, None] * np.diagonal(inverted, axis1=1, axis2=2))
    return beta, error


def newton_step(
    gradient: np.ndarray, information: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The step (k, p), by how much it should raise the log-likelihood (k,), and the standard errors
    (k, p); NaN where the information cannot be inverted."""
    inverted = inverse(information)
    step = times(inverted, gradient)
    gain = 0.5 * dot(step, gradient)
    with np.errstate(invalid="ignore"):
        error = np.sqrt(np.diagonal(inverted, axis1=1, axis2=2))
    return step, gain, error


def is_long(step: np.ndarray) -> np.ndarray:
    """Steps (k, p) that move a coefficient too far to be the last."""
    return np.abs(step).max(axis=-1) > _SHORT


def runs_away(step: np.ndarray, gain: np.ndarray | float) -> np.ndarray:
    """Steps that are long and gain next to nothing: the likelihood is flat there, the estimate
    infinite. A few carriers who are all cases, say: every step adds 1 to their log odds and gains
    1/e of the one before, for ever."""
    return is_long(step) & (gain < _FLAT)


def at_most(step: np.ndarray, longest: float) -> np.ndarray:
    """Steps (k, p) cut to a length, in the same direction."""
    length = np.abs(step).max(axis=1, keepdims=True)
    return step * np.minimum(1.0, longest / np.maximum(length, 1e-300))


def logistic_null(gradient: np.ndarray, information: np.ndarray) -> tuple[np.ndarray, float]:
    """One Newton step of a single model: the step and its gain."""
    step, gain, _ = newton_step(gradient[None], information[None])
    return step[0], float(gain[0])
