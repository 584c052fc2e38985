"""Score test and saddle-point approximation of pooled people, written to be read.

Nothing is summed by cohort: one matrix of people, solvers of numpy and scipy.
"""

import numpy as np
from scipy import optimize, stats


def logistic(x, y):
    """The maximum of the likelihood of y given columns x, by Newton's method."""
    beta = np.zeros(x.shape[1])
    for _ in range(40):
        p = 1 / (1 + np.exp(-x @ beta))
        beta = beta + np.linalg.solve((x.T * (p * (1 - p))) @ x, x.T @ (y - p))
    return beta


def residual_genotype(g, x, p):
    """A genotype (NaN: no call, the mean stands for it) less its weighted regression on x."""
    g = np.where(np.isnan(g), np.nanmean(g), g)
    weight = p * (1 - p)
    return g - x @ np.linalg.solve((x.T * weight) @ x, (x.T * weight) @ g)


def score_test(g, x, y):
    """Estimate and standard error of one step from the model of x alone."""
    p = 1 / (1 + np.exp(-x @ logistic(x, y)))
    own = residual_genotype(g, x, p)
    u, v = own @ (y - p), own**2 @ (p * (1 - p))
    return u / v, 1 / np.sqrt(v)


def saddle_point(g, x, y):
    """Two-sided p of the score, by roots between bounds (Barndorff-Nielsen's formula)."""
    p = 1 / (1 + np.exp(-x @ logistic(x, y)))
    own = residual_genotype(g, x, p)
    found = 0.0
    for q in (own @ (y - p), -own @ (y - p)):
        tilted = lambda t: p * np.exp(own * t) / (1 - p + p * np.exp(own * t))  # noqa: E731
        slope = lambda t: own @ (tilted(t) - p) - q  # noqa: B023, E731
        end = 25.0 * np.sign(q)
        if slope(0.0) * slope(end) > 0:
            continue  # nobody can have so large a score
        t = optimize.brentq(slope, *sorted((0.0, end)), xtol=1e-13)
        k = (np.log(1 - p + p * np.exp(own * t)) - t * p * own).sum()
        w = np.sqrt(2 * (t * q - k))
        v = abs(t) * np.sqrt(own**2 @ (tilted(t) * (1 - tilted(t))))
        found += stats.norm.sf(w + np.log(v / w) / w)
    return min(1.0, found)
