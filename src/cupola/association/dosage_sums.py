"""Sums over people of genotypes that are numbers: what `kernels` does for packed calls.

Dosages are (variants, people), NaN where missing; `reference` says the same variant by variant.
"""

from __future__ import annotations

import numpy as np


def told(dosages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dosages with 0 where none is told, and where one is, as numbers."""
    known = ~np.isnan(dosages)
    return np.where(known, dosages, 0.0), known.astype(np.float64)


def allele_sums(dosages: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copies of a1, and people with a dosage, by group: (variants, groups). chosen: (groups,
    people) bool."""
    value, known = told(dosages)
    members = chosen.T.astype(np.float64)
    return value @ members, np.rint(known @ members).astype(np.int64)


def square_sums(dosages: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Squares of dosages, added up over some people: (variants,)."""
    return (told(dosages)[0] ** 2) @ chosen.astype(np.float64)


def logistic_sums(
    dosages: np.ndarray, fixed: np.ndarray, y: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.logistic_sums` of dosages, (variants, people tested)."""
    value, known = told(dosages)
    reach = beta[:, :-1] @ fixed.T + beta[:, -1:] * value
    p = 1 / (1 + np.exp(-np.clip(reach, -700, 700)))
    weight, residual = known * p * (1 - p), known * (y - p)
    with_genotype = weight * value
    gradient = np.column_stack([residual @ fixed, (residual * value).sum(axis=1)])
    i, j = np.triu_indices(fixed.shape[1])
    last = np.triu_indices(beta.shape[1])[1] == fixed.shape[1]
    information = np.empty((len(value), len(last)))
    information[:, ~last] = weight @ (fixed[:, i] * fixed[:, j])
    square = (with_genotype * value).sum(axis=1)
    information[:, last] = np.column_stack([with_genotype @ fixed, square])
    return gradient, information, np.column_stack([(weight**2).sum(axis=1), known.sum(axis=1)])
