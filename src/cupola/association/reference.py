"""What the kernels compute, written to be read: whole matrices of calls, no bit tricks.

Used where numba is not installed, and by the tests that hold the kernels to it.
"""

from __future__ import annotations

import numpy as np

from cupola.association.bed import COPIES, MISSING, unpacked


def genotype_counts(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """People with two, one and no copies of a1: (variants, groups, 3), int64.

    rows: packed calls. chosen: (groups, people) bool.
    """
    calls = unpacked(rows, chosen.shape[1])
    found = [(calls == call).astype(np.float64) @ chosen.T for call in (0, 2, 3)]
    return np.stack(found, axis=2).astype(np.int64)


def allele_counts(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Copies of a1 and of both alleles, of people with two: (variants, groups, 2), int64."""
    two, one, none = np.moveaxis(genotype_counts(rows, chosen), 2, 0)
    return np.stack([2 * two + one, 2 * (two + one + none)], axis=2)


def call_sums(rows: np.ndarray, two: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Sums over people of `two` (people, columns) where a person has two copies of a1, and of
    `one` where it has one: (variants, columns)."""
    calls = unpacked(rows, len(two))
    return (calls == 0).astype(np.float64) @ two + (calls == 2).astype(np.float64) @ one


def missing_sums(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums of `values` (people, columns) over the people without a call: (variants, columns)."""
    return (unpacked(rows, len(values)) == MISSING).astype(np.float64) @ values


def logistic_sums(
    rows: np.ndarray,
    people: np.ndarray,
    scale: np.ndarray,
    fixed: np.ndarray,
    y: np.ndarray,
    beta: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradient (variants, p) and information (variants, p (p + 1) / 2) of the log-likelihood, and
    (variants, 2): squares of the weights, people who have one.

    people: indices of those tested. scale: what a copy of a1 counts in each of them. fixed:
    (people, p - 1) columns before the genotype. beta: (variants, p). The information is the upper
    triangle, row by row. People without a call count nothing.
    """
    calls = unpacked(rows, rows.shape[1] * 4)[:, people]
    genotype = COPIES[calls] * scale
    told = (calls != MISSING).astype(np.float64)
    gradient, information, spread = [], [], []
    upper = np.triu_indices(beta.shape[1])
    for g, ok, b in zip(genotype, told, beta):
        x = np.column_stack([fixed, g])
        p = 1 / (1 + np.exp(-np.clip(x @ b, -700, 700)))
        gradient.append(x.T @ (ok * (y - p)))
        weight = ok * p * (1 - p)
        information.append(((x.T * weight) @ x)[upper])
        spread.append([weight @ weight, ok.sum()])
    return np.array(gradient), np.array(information), np.array(spread)


def saddle_sums(
    rows: np.ndarray,
    people: np.ndarray,
    scale: np.ndarray,
    fixed: np.ndarray,
    chance: np.ndarray,
    tilt: np.ndarray,
    at: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """`dosage_saddle_sums` of packed calls."""
    calls = unpacked(rows, rows.shape[1] * 4)[:, people]
    genotypes = np.where(calls == MISSING, np.nan, COPIES[calls] * scale)
    return dosage_saddle_sums(genotypes, fixed, chance, tilt, at)


def dosage_saddle_sums(
    dosages: np.ndarray, fixed: np.ndarray, chance: np.ndarray, tilt: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cumulant generating function of each variant's score, its slope and curvature at two points:
    (variants, 3, 2). And of the weights there: their sum, that of their squares, and how many
    people have a genotype: (variants, 2, 3).

    dosages: (variants, people), NaN missing. chance: of being a case, (people,). tilt: (variants,
    columns + 1), the genotype's regression on the fixed columns, and what stands for a missing one.
    at: (variants, 2).
    """
    found, spread = [], []
    for row, c, t in zip(dosages, tilt, at):
        ok = ~np.isnan(row)
        own = (np.where(ok, row, c[-1]) - fixed @ c[:-1])[:, None]
        power = np.clip(own * t, -700, 700)
        base = chance[:, None]
        likely = 1 + base * np.expm1(power)
        p = base * np.exp(power) / likely
        weight = p * (1 - p)
        value = np.log(likely) - base * power
        found.append([value.sum(axis=0), (own * (p - base)).sum(axis=0),
                      (own**2 * weight).sum(axis=0)])  # fmt: skip
        weight = weight * ok[:, None]
        ends = (weight.sum(axis=0), (weight**2).sum(axis=0), np.full(2, ok.sum()))
        spread.append(np.stack(ends, axis=1))
    return np.array(found).reshape(-1, 3, 2), np.array(spread).reshape(-1, 2, 3)


def dosage_sums(
    dosages: np.ndarray, copies: np.ndarray, squares: np.ndarray, off: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums over people with a dosage g of g * copies and g^2 * squares, (variants, columns); how
    many they are; and sums of `off` over the others. dosages: (variants, people), NaN missing."""
    cross, people, lost = [], [], []
    for row in dosages:
        here = ~np.isnan(row)
        g = row[here]
        cross.append(np.concatenate([copies[here].T @ g, squares[here].T @ g**2]))
        people.append(here.sum())
        lost.append(off[~here].sum(axis=0))
    return np.array(cross), np.array(people), np.array(lost)


def dosage_logistic_sums(
    dosages: np.ndarray, fixed: np.ndarray, y: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`logistic_sums` of dosages (variants, people), all of whom are tested."""
    gradient, information, spread = [], [], []
    upper = np.triu_indices(beta.shape[1])
    for row, b in zip(dosages, beta):
        here = ~np.isnan(row)
        x = np.column_stack([fixed, row])[here]
        p = 1 / (1 + np.exp(-np.clip(x @ b, -700, 700)))
        gradient.append(x.T @ (y[here] - p))
        weight = p * (1 - p)
        information.append(((x.T * weight) @ x)[upper])
        spread.append([weight @ weight, here.sum()])
    return np.array(gradient), np.array(information), np.array(spread)
