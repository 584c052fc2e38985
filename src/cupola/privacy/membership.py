"""Membership inference: was a record in the training data?

Two attacks on a finished model. *Loss threshold* (Yeom et al., 2018): members have lower loss.
*Likelihood ratio* (LiRA, Carlini et al., 2022): shadow models trained with and without a record
say how confident a model is in it either way; normal laws are fitted to the logit of the
probability of its true class.

What an attack finds is a statement about this model and these records. A failed attack is no
guarantee; a guarantee is what the ledger's epsilon is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtri
from scipy.stats import norm, rankdata

from cupola.errors import DataError
from cupola.privacy.events import check_number
from cupola.privacy.lower_bounds import CONFIDENCE, upper_rate

FALSE_ALARMS = (0.01, 0.001)


@dataclass(frozen=True)
class Attack:
    """How well scores (higher: more likely a member) tell members from others.

    auc: probability that a member scores above another record; its interval by DeLong's variance.
    tpr: share of members found at a rate of false alarms, None where there are too few other
    records to tell (fewer than 1 / rate).
    advantage: true minus false alarms at a threshold chosen on half of the records and measured on
    the other half, so that it is not inflated by the choice; interval by Clopper-Pearson.
    Intervals cover with `confidence` each, for records drawn independently.
    """

    auc: float
    auc_interval: tuple[float, float]
    tpr: dict[float, float | None]
    advantage: float
    advantage_interval: tuple[float, float]
    members: int
    others: int
    confidence: float


def attack(
    members: np.ndarray,
    others: np.ndarray,
    *,
    confidence: float = CONFIDENCE,
    rates: Sequence[float] = FALSE_ALARMS,
) -> Attack:
    """From scores of members (m,) and of other records (k,), both in random order."""
    check_number("confidence", confidence, above=0, below=1)
    one, two = _scores(members, "members"), _scores(others, "others")
    auc, interval = _auc(one, two, confidence)
    advantage, its_interval = _advantage(one, two, confidence)
    tpr = {rate: _tpr(one, two, rate) for rate in rates}
    return Attack(auc, interval, tpr, advantage, its_interval, len(one), len(two), confidence)


def loss_attack(
    member_losses: np.ndarray, other_losses: np.ndarray, *, confidence: float = CONFIDENCE
) -> Attack:
    """The loss-threshold attack: the lower the loss, the more likely a member."""
    one, two = np.asarray(member_losses, float), np.asarray(other_losses, float)
    return attack(-one, -two, confidence=confidence)


def logit_confidence(logits: np.ndarray, labels: np.ndarray, *, binary: bool = False) -> np.ndarray:
    """log(p / (1 - p)) of the true class's probability, exact also for p near 1; (..., n).

    logits: (..., n, classes), or with `binary` (..., n), the logit of class 1; labels: (n,).
    """
    values, labels = np.asarray(logits, float), np.asarray(labels)
    fits = values.shape[-1:] if binary else values.shape[-2:-1]
    if fits != labels.shape:
        raise DataError(f"logits {values.shape} do not fit labels {labels.shape}")
    if binary:
        return np.where(labels == 1, values, -values)
    own = np.zeros(values.shape[-2:], bool)
    own[np.arange(len(labels)), labels] = True
    rest = logsumexp(np.where(own, -np.inf, values), axis=-1)
    return np.where(own, values, 0.0).sum(axis=-1) - rest


def likelihood_ratio(
    target: np.ndarray,
    shadows: np.ndarray,
    trained_on: np.ndarray,
    *,
    shared_variance: bool | None = None,
) -> np.ndarray:
    """LiRA's score of every record, (n,): log N(target; in) - log N(target; out).

    target: (n,) logit confidences of the attacked model. shadows: (k, n), those of k shadow
    models. trained_on: (k, n), whether shadow model i was trained on record j. Every record needs
    two models that were not; records of which no model was trained with get the offline score,
    the log-odds against chance of a confidence this high.
    shared_variance: one variance for all records (default: below 64 shadow models, where
    single ones are too noisy).
    """
    aim, values = np.asarray(target, float), np.asarray(shadows, float)
    mask = np.asarray(trained_on, bool)
    if values.ndim != 2 or mask.shape != values.shape or aim.shape != values.shape[1:]:
        raise DataError(
            f"shapes do not fit: target {aim.shape}, shadows {values.shape}, "
            f"trained_on {mask.shape}"
        )
    if np.any((~mask).sum(axis=0) < 2):
        raise DataError("every record needs at least two shadow models trained without it")
    shared = len(values) < 64 if shared_variance is None else shared_variance
    bounded = np.clip(values, -50, 50)  # a probability of exactly 0 or 1 has no finite logit
    aim = np.clip(aim, -50, 50)
    mean_out, deviation_out = _fit(bounded, ~mask, shared)
    out = norm.logpdf(aim, mean_out, deviation_out)
    known = mask.sum(axis=0) >= (1 if shared else 2)
    if not known.any():
        return -norm.logsf(aim, mean_out, deviation_out)
    if not known.all():
        raise DataError("either every record or none may have shadow models trained with it")
    mean_in, deviation_in = _fit(bounded, mask, shared)
    return norm.logpdf(aim, mean_in, deviation_in) - out


def _fit(values: np.ndarray, mask: np.ndarray, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every record over the shadow models in the mask."""
    count = mask.sum(axis=0)
    mean = np.where(mask, values, 0).sum(axis=0) / count
    squares = np.where(mask, (values - mean) ** 2, 0).sum(axis=0)
    if shared:
        freedom = max(int(count.sum()) - len(count), 1)
        variance = np.full(len(mean), squares.sum() / freedom)
    else:
        variance = squares / (count - 1)
    return mean, np.sqrt(np.maximum(variance, 1e-12))


def _scores(values: np.ndarray, name: str) -> np.ndarray:
    found = np.asarray(values, float)
    if found.ndim != 1 or len(found) < 2 or np.isnan(found).any():
        raise DataError(f"{name}: two scores or more without NaN, shape (n,), not {found.shape}")
    return found


def _auc(one: np.ndarray, two: np.ndarray, confidence: float) -> tuple[float, tuple[float, float]]:
    """Mann-Whitney with DeLong's variance, ties counted half."""
    m, k = len(one), len(two)
    ranks = rankdata(np.concatenate([one, two]))
    above = (ranks[:m] - rankdata(one)) / k  # share of the others below each member
    below = 1 - (ranks[m:] - rankdata(two)) / m
    auc = float(above.mean())
    error = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / k)
    reach = float(ndtri((1 + confidence) / 2)) * error
    return auc, (max(0.0, auc - reach), min(1.0, auc + reach))


def _tpr(one: np.ndarray, two: np.ndarray, rate: float) -> float | None:
    allowed = math.floor(rate * len(two) + 1e-9)
    if allowed < 1:
        return None
    threshold = np.sort(two)[-allowed - 1] if allowed < len(two) else -math.inf
    return float((one > threshold).mean())


def _advantage(
    one: np.ndarray, two: np.ndarray, confidence: float
) -> tuple[float, tuple[float, float]]:
    a, b = len(one) // 2, len(two) // 2
    thresholds = np.unique(np.concatenate([one[:a], two[:b]]))
    gains = _above(one[:a], thresholds) - _above(two[:b], thresholds)
    threshold = thresholds[int(np.argmax(gains))]
    hits, alarms = int((one[a:] > threshold).sum()), int((two[b:] > threshold).sum())
    m, k = len(one) - a, len(two) - b
    alpha = (1 - confidence) / 4  # two rates, two sides
    most = float(upper_rate(hits, m, alpha)) - (1 - float(upper_rate(k - alarms, k, alpha)))
    least = (1 - float(upper_rate(m - hits, m, alpha))) - float(upper_rate(alarms, k, alpha))
    return hits / m - alarms / k, (least, most)


def _above(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return 1 - np.searchsorted(np.sort(values), thresholds, side="right") / len(values)
