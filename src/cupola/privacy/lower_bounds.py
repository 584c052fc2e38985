"""Lower bounds on epsilon from attacks: statistics for audits.

An auditor runs a mechanism many times with a canary and without it, and turns each run into a
score. (epsilon, delta)-differential privacy limits how well scores tell the two apart: for every
event E, P(E | with) <= e^epsilon P(E | without) + delta, and with the two exchanged. So rates that
are surely above that refute the claim. Every bound here says: *with the stated confidence,
epsilon at delta is at least this*; it can be too low, and proves nothing about privacy.

Trials must be independent, with fresh randomness each. Thresholds and directions are chosen on
other trials than those that give the bound, so that the choice needs no correction.

- `lower_bound`: Clopper-Pearson bounds on the two error rates (Nasr et al., 2021); no assumption.
- `gaussian_lower_bound`: through mu of mu-GDP (Nasr et al., 2023); tighter with few trials, but it
  *assumes that the trade-off curve is that of a Gaussian mechanism*.
- `LinearScore`, `vector_lower_bound`: a score from vectors (say, projections on the canary in every
  round), fitted so that noise which is shared between entries cancels.
- `contradiction`: the same against a whole promised curve, epsilon at every delta, of which a
  mechanism with a known accountant promises all: far more power than at one tiny delta.
- `one_run_p_value`: many canaries in one run, each included by its own fair coin
  (Steinke, Nasr and Jagielski, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import betaincinv, log_ndtr, ndtri
from scipy.stats import binom

from cupola.errors import DataError
from cupola.privacy.events import check_number

CONFIDENCE = 0.99
ANY = "none beyond independent trials"
GAUSSIAN = "the trade-off curve is that of a Gaussian mechanism (mu-GDP)"
_CANDIDATES = 256  # thresholds tried per sample; they are chosen apart from the bound
_ROUNDING = 1e-12  # deviations below this, relative, are none: groups without any noise
_RIDGES = (1e-12, 1e-9, 1e-6, 1e-3, 1e-1, 1e3)  # relative; the last is the mean difference


@dataclass(frozen=True)
class Bound:
    """epsilon >= `epsilon` at `delta`, with `confidence`, under `assumption`.

    fpr, fnr: upper confidence bounds on the attack's error rates (None for one run).
    trials: runs (or guesses) that gave the bound, without those that chose the threshold.
    threshold: canary guessed where sign * score > threshold. mu: of mu-GDP, where it was used.
    """

    epsilon: float
    delta: float
    confidence: float
    assumption: str
    trials: int
    fpr: float | None = None
    fnr: float | None = None
    threshold: float | None = None
    sign: int = 1
    mu: float | None = None

    def refutes(self, claim: float) -> bool:
        """Whether a claimed epsilon (at the same delta) is contradicted."""
        return self.epsilon > claim


def upper_rate(hits: np.ndarray | int, trials: int, alpha: float) -> np.ndarray:
    """Clopper-Pearson: the true rate is above this with probability at most alpha."""
    hits = np.asarray(hits, float)
    with np.errstate(invalid="ignore"):
        bound = betaincinv(hits + 1, np.maximum(trials - hits, 1e-300), 1 - alpha)
    return np.where(hits >= trials, 1.0, bound)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta(epsilon) of a Gaussian mechanism with sensitivity / standard deviation = mu."""
    if mu == 0:
        return 0.0
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(-np.exp(first) * np.expm1(min(second - first, 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-private."""
    check_number("mu", mu, least=0)
    check_number("delta", delta, above=0, below=1)
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, mu) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > delta else (low, middle)
    return low  # a lower bound is built on it


def lower_bound(
    included: np.ndarray, excluded: np.ndarray, delta: float, *, confidence: float = CONFIDENCE
) -> Bound:
    """Epsilon from scores with the canary, (m,), and without it, (k,), one per trial.

    The first half of the trials chooses threshold and direction, the second gives the bound.
    """

    def worth(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
        return _epsilon_of_rates(fpr, fnr, delta)

    return _bound(included, excluded, delta, confidence, worth, ANY)


def gaussian_lower_bound(
    included: np.ndarray, excluded: np.ndarray, delta: float, *, confidence: float = CONFIDENCE
) -> Bound:
    """Like `lower_bound`, for a mechanism whose noise is Gaussian: mu from the rates, then epsilon.

    For a mechanism with subsampling the assumption does not hold, and the bound is an estimate.
    """
    found = _bound(included, excluded, delta, confidence, _mu_of_rates, GAUSSIAN)
    mu = found.epsilon
    return Bound(**{**vars(found), "epsilon": gaussian_epsilon(mu, delta), "mu": mu})


@dataclass(frozen=True)
class LinearScore:
    """Fisher's linear discriminant: score = direction . vector, unit deviation within a group.

    Entries that carry the same noise are subtracted from each other by it, so reused noise
    does not hide a canary whose contributions differ.
    """

    direction: np.ndarray

    @classmethod
    def fit(cls, included: np.ndarray, excluded: np.ndarray) -> LinearScore:
        """From training vectors (m, d) and (k, d); the ridge is chosen on a third of them."""
        one, two = _matrix(included, "included"), _matrix(excluded, "excluded")
        if one.shape[1] != two.shape[1]:
            raise DataError(f"vectors of {one.shape[1]} and {two.shape[1]} entries")
        deviation = np.vstack([one, two]).std(axis=0)
        scale = np.where(deviation > 1e-150, deviation, 1.0)  # what never changes says nothing
        one, two = one / scale, two / scale
        a, b = 2 * len(one) // 3, 2 * len(two) // 3
        spectrum = _spectrum(one[:a], two[:b])
        gains = [_separation(_direction(spectrum, ridge), one[a:], two[b:]) for ridge in _RIDGES]
        spectrum = _spectrum(one, two)
        direction = _direction(spectrum, _RIDGES[int(np.argmax(gains))])
        spread = math.sqrt(_within(direction, one, two))
        return cls(direction / max(spread, _ROUNDING) / scale)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        return np.asarray(vectors, float) @ self.direction


def vector_lower_bound(
    included: np.ndarray,
    excluded: np.ndarray,
    delta: float,
    *,
    confidence: float = CONFIDENCE,
    gaussian: bool = False,
) -> Bound:
    """Epsilon from one vector per trial, (m, d) and (k, d).

    The first third of the trials fits a linear score, the rest goes to `lower_bound`
    (or `gaussian_lower_bound`).
    """
    one, two = _matrix(included, "included"), _matrix(excluded, "excluded")
    a, b = len(one) // 3, len(two) // 3
    score = LinearScore.fit(one[:a], two[:b])
    bound = gaussian_lower_bound if gaussian else lower_bound
    return bound(score(one[a:]), score(two[b:]), delta, confidence=confidence)


@dataclass(frozen=True)
class Contradiction:
    """How far a lower bound is above what is promised, at the delta where it is furthest.

    margin: epsilon less claim; above 0 it refutes, with `confidence`. reach: the largest margin
    that an attack without errors would have had.
    """

    margin: float
    epsilon: float
    delta: float
    claim: float
    confidence: float
    trials: int
    reach: float

    @property
    def refutes(self) -> bool:
        return self.margin > 0


def contradiction(
    included: np.ndarray,
    excluded: np.ndarray,
    claims: Sequence[tuple[float, float]],
    *,
    confidence: float = CONFIDENCE,
) -> Contradiction:
    """One vector per trial, (m, d) and (k, d), against promised pairs (delta, epsilon).

    A third of the trials fits a linear score, a third chooses a threshold, the last is counted.
    Bounds on the two error rates hold for all pairs at once, so that the best pair may be taken.
    """
    one, two = _matrix(included, "included"), _matrix(excluded, "excluded")
    a, b = len(one) // 3, len(two) // 3
    score = LinearScore.fit(one[:a], two[:b])

    def margins(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
        return np.stack([_epsilon_of_rates(fpr, fnr, d) - e for d, e in claims])

    def worth(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
        return margins(fpr, fnr).max(0)

    found = _bound(score(one[a:]), score(two[b:]), claims[0][0], confidence, worth, ANY)
    assert found.fpr is not None
    assert found.fnr is not None
    each = margins(np.array([found.fpr]), np.array([found.fnr]))[:, 0]
    place = int(np.argmax(each))
    delta, claim = claims[place]
    least = float(upper_rate(0, max(1, (len(one) - a) // 2), (1 - confidence) / 2))
    reach = float(worth(np.array([least]), np.array([least]))[0])
    margin = float(each[place])
    return Contradiction(
        margin, max(0.0, margin + claim), delta, claim, confidence, found.trials, reach
    )


def one_run_p_value(m: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """P(as many right guesses or more) is at most this for every (epsilon, delta)-private run.

    Steinke et al. (2023), theorem 5.2 with its numeric form: m canaries, of which `guesses` were
    guessed.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, chance))
    if right == 0 or delta == 0:
        return min(beta, 1.0)
    steps = np.arange(1, right + 1)
    below = np.cumsum(binom.pmf(right - steps, guesses, chance))
    return min(beta + 2 * m * delta * float((below / steps).max()), 1.0)


def _bound(
    included: np.ndarray,
    excluded: np.ndarray,
    delta: float,
    confidence: float,
    worth: Callable[[np.ndarray, np.ndarray], np.ndarray],
    assumption: str,
) -> Bound:
    """`worth` of upper bounds on (fpr, fnr) at the threshold that was best on the first half."""
    _check(delta, confidence)
    one, two = _column(included, "included"), _column(excluded, "excluded")
    a, b = len(one) // 2, len(two) // 2
    if min(a, b) < 1:
        raise DataError("an audit needs at least two trials with the canary and two without")
    alpha = (1 - confidence) / 2  # half for each of the two rates
    best: tuple[float, float, Literal[-1, 1]] = (-math.inf, 0.0, 1)
    signs: tuple[Literal[1], Literal[-1]] = (1, -1)
    for sign in signs:
        thresholds = _candidates(sign * one[:a], sign * two[:b])
        values = worth(*_rates(sign * one[:a], sign * two[:b], thresholds, alpha))
        place = int(np.argmax(values))
        if values[place] > best[0]:
            best = (float(values[place]), float(thresholds[place]), sign)
    _, threshold, sign = best
    fpr, fnr = _rates(sign * one[a:], sign * two[b:], np.array([threshold]), alpha)
    value = max(0.0, float(worth(fpr, fnr)[0]))
    trials = len(one) - a + len(two) - b
    rates = float(fpr[0]), float(fnr[0])
    return Bound(value, delta, confidence, assumption, trials, *rates, threshold, sign)


def _rates(
    one: np.ndarray, two: np.ndarray, thresholds: np.ndarray, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds on the rates of false alarms (score > t without) and misses (<= t with)."""
    alarms = len(two) - np.searchsorted(np.sort(two), thresholds, side="right")
    misses = np.searchsorted(np.sort(one), thresholds, side="right")
    return upper_rate(alarms, len(two), alpha), upper_rate(misses, len(one), alpha)


def _candidates(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Observed scores, all of them or dense in both tails."""
    chosen = []
    for values in (np.sort(one), np.sort(two)):
        ranks = np.arange(len(values))
        if len(values) > _CANDIDATES:
            tail = np.geomspace(1, len(values) / 2, _CANDIDATES // 2).astype(int)
            ranks = np.concatenate([tail - 1, len(values) - tail])
        chosen.append(values[ranks])
    return np.unique(np.concatenate(chosen))


def _epsilon_of_rates(fpr: np.ndarray, fnr: np.ndarray, delta: float) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(1 - delta - fnr, 0) / fpr)
        other = np.log(np.maximum(1 - delta - fpr, 0) / fnr)
    return np.nan_to_num(np.maximum(found, other), nan=-np.inf)


def _mu_of_rates(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
    """A Gaussian mechanism reaches fnr = Phi(Phi^-1(1 - fpr) - mu)."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(-ndtri(fpr) - ndtri(fnr), nan=-np.inf, neginf=-np.inf)


def _spectrum(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues and vectors of the covariance within the groups, and the mean difference."""
    centred = np.vstack([one - one.mean(axis=0), two - two.mean(axis=0)])
    values, vectors = np.linalg.eigh(centred.T @ centred / max(len(centred) - 2, 1))
    return np.maximum(values, 0), vectors, one.mean(axis=0) - two.mean(axis=0)


def _direction(spectrum: tuple[np.ndarray, np.ndarray, np.ndarray], ridge: float) -> np.ndarray:
    values, vectors, difference = spectrum
    floor = max(ridge * values.mean(), 1e-300)
    direction = vectors @ ((vectors.T @ difference) / (values + floor))
    return direction / max(np.linalg.norm(direction), 1e-300)


def _within(direction: np.ndarray, one: np.ndarray, two: np.ndarray) -> float:
    return float(((one @ direction).var() + (two @ direction).var()) / 2)


def _separation(direction: np.ndarray, one: np.ndarray, two: np.ndarray) -> float:
    """Distance of the means in deviations, on vectors the direction has not seen."""
    if len(one) < 2 or len(two) < 2:
        return 0.0
    apart = float((one.mean(axis=0) - two.mean(axis=0)) @ direction)
    return apart / math.sqrt(max(_within(direction, one, two), 1e-300))


def _check(delta: float, confidence: float) -> None:
    check_number("delta", delta, least=0, below=1)
    check_number("confidence", confidence, above=0, below=1)


def _column(values: np.ndarray, name: str) -> np.ndarray:
    found = np.asarray(values, float)
    if found.ndim != 1 or np.isnan(found).any():
        raise DataError(f"{name} must be scores without NaN, shape (trials,), not {found.shape}")
    return found


def _matrix(values: np.ndarray, name: str) -> np.ndarray:
    found = np.asarray(values, float)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise DataError(f"{name} must be finite vectors, shape (trials, d), not {found.shape}")
    if len(found) < 2:
        raise DataError(f"{name}: a linear score needs at least two trials to fit")
    return found
