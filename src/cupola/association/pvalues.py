"""Probabilities far out in the tails: survival functions and their logarithms, never 1 - cdf.

p below 1e-308 has no float; `log10` versions reach any statistic.
"""

from __future__ import annotations

import numpy as np
from scipy import special

LN10 = np.log(10.0)
HALF_CHI2 = float(special.chdtri(1, 0.5))  # the median of chi-square with one degree of freedom


def normal(z: np.ndarray) -> np.ndarray:
    """Two-sided p of a standard normal statistic."""
    return special.erfc(np.abs(z) / np.sqrt(2.0))


def log10_normal(z: np.ndarray) -> np.ndarray:
    return (special.log_ndtr(-np.abs(z)) + np.log(2.0)) / LN10


def chi2(x: np.ndarray) -> np.ndarray:
    """p of a chi-square statistic with one degree of freedom."""
    return normal(np.sqrt(x))


def chi2_of(p: float) -> float:
    """The chi-square statistic with one degree of freedom that has this p."""
    return float(special.chdtri(1, p))


def log10_chi2(x: np.ndarray) -> np.ndarray:
    return log10_normal(np.sqrt(x))


def student(t: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Two-sided p of a t statistic."""
    t, freedom = np.asarray(t, float), np.asarray(freedom, float)
    return special.betainc(freedom / 2, 0.5, freedom / (freedom + t * t))


def log10_student(t: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """By the incomplete beta function's series where p itself is no float any more."""
    t, freedom = np.broadcast_arrays(np.asarray(t, float), np.asarray(freedom, float))
    p = student(t, freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log10(p)
        far = p < 1e-290
        a, x = freedom[far] / 2, freedom[far] / (freedom[far] + t[far] ** 2)
        series = special.hyp2f1(1.0, a + 0.5, a + 1, x)  # after Euler's transformation
        log = a * np.log(x) + 0.5 * np.log1p(-x) - np.log(a) - special.betaln(a, 0.5)
        found[far] = (log + np.log(series)) / LN10
    return found


def inflation(chi_squares: np.ndarray) -> float:
    """Genomic inflation factor: median statistic over the median of its null distribution."""
    told = chi_squares[np.isfinite(chi_squares)]
    return float(np.median(told) / HALF_CHI2) if len(told) else float("nan")
