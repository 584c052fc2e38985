"""The chi-square test of alleles by case and control, and the Cochran-Armitage trend test.

Both are of the pooled counts: cohorts add their tables, and the coordinator tests the total.
"""

from __future__ import annotations

import numpy as np

from cupola.association import fit, pvalues
from cupola.association.study_choices import CASES, CONTROLS

_BLOCK = 1 << 14  # variants worked on at once: they stay in the processor's cache


def allelic(alleles: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The chi-square test of alleles by case and control, in pieces that stay in the cache."""
    columns: dict[str, np.ndarray] = {}
    for start in range(0, max(1, len(alleles)), _BLOCK):
        part = slice(start, start + _BLOCK)
        for name, values in _part(alleles[part]).items():
            if name not in columns:
                columns[name] = np.empty(len(alleles))
            columns[name][part] = values
    status = np.where(np.isnan(columns["CHISQ"]), fit.MONOMORPHIC, fit.OK).astype(np.uint8)
    return columns, status


def statistic(alleles: np.ndarray) -> np.ndarray:
    """Chi-square alone, whose bits are the same on every processor."""
    a, cases = alleles[:, CASES].T.astype(float)
    c, controls = alleles[:, CONTROLS].T.astype(float)
    return _chi_square(a, cases, c, controls)


def _chi_square(
    a: np.ndarray, cases: np.ndarray, c: np.ndarray, controls: np.ndarray
) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        both = cases + controls
        expected = cases * (a + c) / both
        # The four cells differ from their expectation by the same amount.
        gap = (a - expected) * (a - expected)
        rest = (cases - a) + (controls - c)
        return gap * (both / cases) * (both / controls) * (both / (a + c)) / rest


def _part(alleles: np.ndarray) -> dict[str, np.ndarray]:
    a, cases = alleles[:, CASES].T.astype(float)
    c, controls = alleles[:, CONTROLS].T.astype(float)
    b, d = cases - a, controls - c
    with np.errstate(divide="ignore", invalid="ignore"):
        both, x = cases + controls, _chi_square(a, cases, c, controls)
        ratio = (a * d) / (b * c)
        error = np.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
        return {
            "F_A": a / cases, "F_U": c / controls, "C_A": a, "C_U": c, "CHISQ": x,
            "P": pvalues.chi2(x), "LOG10P": pvalues.log10_chi2(x),
            "OR": np.where(b * c > 0, ratio, np.nan),
            "SE": np.where(np.isfinite(error), error, np.nan),
            "NMISS": both / 2,
        }  # fmt: skip


def trend(genotypes: np.ndarray) -> dict[str, np.ndarray]:
    """Cochran-Armitage: chi-square of a linear trend in the number of copies."""
    table = genotypes[:, :2].astype(float)  # (variants, cases and controls, copies 2 1 0)
    copies = np.array([2.0, 1.0, 0.0])
    r, s = table.sum(axis=2).T
    n = table.sum(axis=1)
    total = r + s
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (table[:, 0] @ copies) * s - (table[:, 1] @ copies) * r
        variance = total * (n @ copies**2) - (n @ copies) ** 2
        x = total * t**2 / (r * s * variance)
    return {"T_CHISQ": x, "T_P": pvalues.chi2(x)}
