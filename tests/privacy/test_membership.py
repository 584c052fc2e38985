"""Membership inference on scores whose law is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from cupola.errors import CupolaError, DataError
from cupola.privacy.membership import attack, likelihood_ratio, logit_confidence, loss_attack


def shifted(seed: int, m: int, k: int, shift: float):
    rng = np.random.default_rng(seed)
    return rng.normal(size=m) + shift, rng.normal(size=k)


def test_auc_equals_the_reference_with_ties():
    one, two = (np.round(v, 1) for v in shifted(0, 300, 200, 0.4))
    truth = roc_auc_score(np.r_[np.ones(300), np.zeros(200)], np.r_[one, two])
    assert attack(one, two).auc == pytest.approx(truth, abs=1e-12)


def test_rates_and_advantage_of_known_laws():
    one, two = shifted(1, 40000, 40000, 1.0)
    found = attack(one, two)
    assert found.auc == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.01)
    for rate in (0.01, 0.001):
        assert found.tpr[rate] == pytest.approx(norm.sf(norm.isf(rate) - 1), abs=0.012)
    truth = 2 * norm.cdf(0.5) - 1
    assert found.advantage == pytest.approx(truth, abs=0.015)
    low, high = found.advantage_interval
    assert low < truth < high < low + 0.06


def test_intervals_cover_and_guessing_gains_nothing():
    inside = {"auc": 0, "advantage": 0}
    mean = 0.0
    for seed in range(200):
        found = attack(*shifted(seed, 60, 60, 0.0), confidence=0.9)
        inside["auc"] += found.auc_interval[0] <= 0.5 <= found.auc_interval[1]
        inside["advantage"] += found.advantage_interval[0] <= 0 <= found.advantage_interval[1]
        mean += found.advantage / 200
    assert inside["auc"] >= 170  # 180 expected
    assert inside["advantage"] >= 180
    assert abs(mean) < 0.03  # chosen and measured on the same half it would be 0.15


def test_too_few_records_for_a_rate_are_said():
    found = attack(*shifted(0, 50, 500, 1.0))
    assert found.tpr[0.001] is None
    assert found.tpr[0.01] is not None


def test_a_low_loss_means_a_member():
    rng = np.random.default_rng(0)
    found = loss_attack(rng.exponential(0.1, 500), rng.exponential(1.0, 500))
    assert found.auc > 0.85
    assert found.advantage_interval[0] > 0.4


def test_logit_confidence_is_exact_where_the_probability_is_one():
    logits = np.array([[800.0, 0.0, 0.0], [0.0, 1.0, 2.0]])
    found = logit_confidence(logits, np.array([0, 1]))
    p = np.exp(1) / np.exp([0, 1, 2]).sum()
    assert found == pytest.approx([800 - math.log(2), math.log(p / (1 - p))])
    binary = logit_confidence(np.array([3.0, -2.0]), np.array([1, 0]), binary=True)
    assert binary.tolist() == [3.0, 2.0]
    stacked = logit_confidence(np.stack([logits, logits]), np.array([0, 1]))
    assert stacked.shape == (2, 2)
    with pytest.raises(DataError, match="do not fit"):
        logit_confidence(logits, np.array([0, 1, 2]))


@pytest.mark.parametrize("models", [16, 128])
def test_likelihood_ratio_beats_the_loss_where_records_differ(models):
    # Records differ in difficulty far more than membership moves them.
    rng = np.random.default_rng(3)
    n = 1000
    hard = 5 * rng.normal(size=n)
    trained = rng.random((models, n)) < 0.5
    trained[:2], trained[2:4] = False, True
    shadows = hard + 2.0 * trained + rng.normal(size=(models, n))
    member = rng.random(n) < 0.5
    target = hard + 2.0 * member + rng.normal(size=n)
    ratio = likelihood_ratio(target, shadows, trained)
    online = attack(ratio[member], ratio[~member])
    plain = attack(target[member], target[~member])
    without = likelihood_ratio(target, shadows, np.zeros_like(trained))
    assert online.auc > 0.88 > 0.7 > plain.auc  # the best possible is .921
    assert attack(without[member], without[~member]).auc > 0.7


def test_likelihood_ratio_is_the_ratio():
    shadows = np.array([[0.0], [2.0], [4.0], [6.0]])
    trained = np.array([[False], [False], [True], [True]])
    found = likelihood_ratio(np.array([3.0]), shadows, trained, shared_variance=False)
    truth = norm.logpdf(3, 5, math.sqrt(2)) - norm.logpdf(3, 1, math.sqrt(2))
    assert found == pytest.approx([truth])


def test_bad_input_is_refused():
    good = np.zeros(4)
    for one, two in ((good[:1], good), (good, np.array([0, np.nan])), (good[None], good)):
        with pytest.raises(DataError):
            attack(one, two)
    with pytest.raises(CupolaError, match="confidence"):
        attack(good, good, confidence=1.0)
    with pytest.raises(DataError, match="shapes"):
        likelihood_ratio(good, np.zeros((3, 5)), np.zeros((3, 5), bool))
    with pytest.raises(DataError, match="without it"):
        likelihood_ratio(good, np.zeros((3, 4)), np.ones((3, 4), bool))
    some = np.zeros((6, 4), bool)
    some[:2, 0] = True
    with pytest.raises(DataError, match="every record or none"):
        likelihood_ratio(good, np.zeros((6, 4)), some)
