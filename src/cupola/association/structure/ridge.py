"""The two ridge regressions of whole-genome regression, from totals.

Coefficients for the people of a fold come from the trait of the others. What lies between a total
and the next question is done in portable arithmetic; see `portable_algebra`.
"""

from __future__ import annotations

import numpy as np

from cupola.association import fit
from cupola.association.portable_algebra import combined, dot, inverse, solved, total

_FLAT = 1e-9  # share of its squares below which what the covariates leave of a marker is nothing


def penalty(columns: int, heritability: float) -> float:
    """Of so many columns of variance one which together explain this share of the trait."""
    return columns * (1 - heritability) / heritability


def block_coefficients(
    linked: np.ndarray,
    cross: np.ndarray,
    trait: np.ndarray,
    fixed: np.ndarray,
    covariates: np.ndarray,
    people: int,
    lam: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Of one block: coefficients (b, folds) of its markers and (p, folds) of the covariates.

    linked: X'X, upper triangle. cross: X'Z, (b, p). trait: X_k'y of each fold, (b, folds), y what
    the covariates leave of the trait. fixed: Z_k'y, (p, folds). covariates: (Z'Z)^-1. lam: penalty
    for markers of variance one. X is rid of the covariates by T = [-(Z'Z)^-1 Z'X; 1], never by
    itself: genotypes stay small numbers. X'X of the other folds is taken to be their share of the
    whole: it knows nothing of the trait, and folds are drawn at random.
    """
    folds = trait.shape[1]
    explained = combined(cross, covariates)  # (b, p)
    whole = fit.symmetric(linked, len(cross))
    squares = whole[range(len(cross)), range(len(cross))].copy()
    for j in range(cross.shape[1]):
        whole -= explained[:, j, None] * cross[:, j]
    left = whole[range(len(cross)), range(len(cross))]
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(left > _FLAT * squares, 1 / np.sqrt(left / (people - cross.shape[1])), 0.0)
    others = total(trait.T)[:, None] - trait
    others_fixed = total(fixed.T)[:, None] - fixed
    right = (others - combined(explained, others_fixed)) * scale[:, None]
    matrix = whole * scale[:, None] * scale * ((folds - 1) / folds)
    matrix[range(len(cross)), range(len(cross))] += lam
    beta = solved(matrix[None], right[None])[0] * scale[:, None]
    return beta, -combined(np.ascontiguousarray(explained.T), beta)


def stacked_weights(products: np.ndarray, trait: np.ndarray, lams: list[float]) -> np.ndarray:
    """Weights (folds, c, penalties) of the predictions of blocks.

    products: W_k'W_k of each fold, upper triangles. trait: W_k'y, (folds, c). Made anew for each
    fold: W knows the trait."""
    folds, c = trait.shape
    whole = fit.symmetric(total(products)[None] - products, c)
    right = (total(trait) - trait)[:, :, None]
    found = np.empty((folds, c, len(lams)))
    for i, lam in enumerate(lams):
        matrix = whole.copy()
        matrix[:, range(c), range(c)] += lam
        found[:, :, i] = solved(matrix, right)[:, :, 0]
    return found


def moments(sums: np.ndarray, people: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of columns, from (c, 2), sums and sums of squares. 0 for what
    hardly varies."""
    mean = sums[:, 0] / people
    variance = sums[:, 1] / people - mean * mean
    fine = variance > 1e-10 * (mean * mean) + 1e-20
    return mean, np.sqrt(np.where(fine, variance, 0.0))


def covariates_inverse(products: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(Z'Z)^-1 and the coefficients of the trait on Z, from products of [Z, y]."""
    whole = fit.symmetric(products, columns + 1)
    inverted = inverse(whole[None, :-1, :-1])[0]
    return inverted, combined(inverted, whole[:-1, -1:])[:, 0]


def left_of_trait(products: np.ndarray, gamma: np.ndarray) -> float:
    """Squares of what the covariates leave of the trait."""
    whole = fit.symmetric(products, len(gamma) + 1)
    return float(whole[-1, -1] - dot(gamma[None], whole[None, -1, :-1])[0])
