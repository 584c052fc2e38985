"""Audits of mechanisms whose epsilon is known, and of the same mechanisms broken on purpose."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from cupola.errors import DataError, PlanError
from cupola.privacy.lower_bounds import (
    LinearScore,
    contradiction,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_lower_bound,
    lower_bound,
    one_run_p_value,
    upper_rate,
    vector_lower_bound,
)

DELTA = 1e-5


def gaussian(seed: int, trials: int, mu: float):
    """Scores of the Gaussian mechanism with and without a canary of norm mu deviations."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=trials) + mu, rng.normal(size=trials)


def training(
    seed: int,
    trials: int,
    *,
    rounds: int = 6,
    noise: float = 2.0,
    clip: float = 1.0,
    norm: float = 10.0,
    drawn: float = 1.0,
    clipped: bool = True,
    reused: bool = False,
):
    """Projections on the canary in every round, (trials, rounds), with and without it.

    The canary's gradient has norm `norm` and turns its sign from round to round; the noise claimed
    is noise * clip, the noise drawn is `drawn` times that.
    """
    rng = np.random.default_rng(seed)
    signs = np.array([1.0, -1.0] * (rounds // 2))
    canary = signs * (min(norm, clip) if clipped else norm)
    size = (2, trials, 1 if reused else rounds)
    noises = rng.normal(size=size) * noise * clip * drawn * np.ones(rounds)
    return canary + noises[0], noises[1]


def claim(rounds: int = 6, noise: float = 2.0) -> float:
    return gaussian_epsilon(math.sqrt(rounds) / noise, DELTA)


# Known values


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_epsilon_of_a_gaussian_equals_the_accountant(mu):
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(GaussianDpEvent(1 / mu))
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), abs=2e-3)
    assert gaussian_delta(gaussian_epsilon(mu, DELTA), mu) == pytest.approx(DELTA, rel=1e-6)


def test_epsilon_of_a_gaussian_at_the_ends():
    assert gaussian_epsilon(0.0, DELTA) == 0
    assert gaussian_epsilon(1e-6, DELTA) == 0
    assert gaussian_epsilon(100.0, DELTA) > 5000


@given(trials=st.integers(1, 60), share=st.floats(1e-9, 1), alpha=st.sampled_from([0.005, 0.1]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_clopper_pearson_covers_exactly(trials, share, alpha):
    bounds = upper_rate(np.arange(trials + 1), trials, alpha)
    assert np.all(np.diff(bounds) >= 0)
    missed = binom.pmf(np.arange(trials + 1), trials, share)[bounds < share].sum()
    assert missed <= alpha + 1e-12
    assert bounds[-1] == 1.0


# Bounds stay below the truth


@pytest.mark.parametrize("bound", [lower_bound, gaussian_lower_bound])
@pytest.mark.parametrize(("mu", "delta"), [(0.3, 0.05), (1.0, 1e-5), (3.0, 1e-5)])
def test_coverage_is_at_least_nominal(bound, mu, delta):
    truth, seeds = gaussian_epsilon(mu, delta), 400
    above = sum(
        bound(*gaussian(seed, 120, mu), delta, confidence=0.9).epsilon > truth
        for seed in range(seeds)
    )
    assert above <= binom.isf(0.001, seeds, 0.1)
    assert above <= 40


def test_identical_samples_give_nothing_away():
    exceeded = sum(lower_bound(*gaussian(seed, 100, 0.0), 0.0).epsilon > 0 for seed in range(300))
    assert exceeded <= 3  # one in a hundred is allowed


def test_the_threshold_is_chosen_apart_from_the_bound():
    # Laplace noise: nearly every threshold is tight, so a choice on the same trials would exceed.
    truth, seeds, above = 1.0, 300, 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        noises = rng.laplace(size=(2, 100))
        above += lower_bound(noises[0] + truth, noises[1], 0.0, confidence=0.2).epsilon > truth
        # low confidence: the correction is small, and a biased choice would show
    assert above <= 0.8 * seeds
    chosen = lower_bound(np.r_[np.ones(50), np.zeros(50)], np.zeros(100), 0.0)
    assert chosen.epsilon == 0  # a difference in the first half alone proves nothing
    assert chosen.trials == 100


def test_what_delta_allows_is_not_counted():
    # With probability delta the canary is shown, otherwise nothing: (0, delta)-private.
    rng = np.random.default_rng(1)
    shown = (rng.random(4000) < 0.3).astype(float)
    nothing = np.zeros(4000)
    assert lower_bound(shown, nothing, 0.0).epsilon > 4
    assert lower_bound(shown, nothing, 0.3).epsilon == 0
    assert lower_bound(nothing, shown, 0.3).epsilon == 0
    assert lower_bound(shown, nothing, 0.2).epsilon > 2


def test_the_bound_is_reached_by_randomised_response():
    # The one mechanism with exactly two outcomes: e^epsilon is the ratio of the rates.
    rng = np.random.default_rng(0)
    truth = 2.0
    lie = 1 / (1 + math.exp(truth))
    one, two = rng.random(40000) >= lie, rng.random(40000) < lie
    found = lower_bound(one.astype(float), two.astype(float), 0.0)
    assert 0.96 * truth < found.epsilon <= truth
    turned = lower_bound(two.astype(float), one.astype(float), 0.0)  # the direction is found
    assert turned.sign == -1
    assert 0.96 * truth < turned.epsilon <= truth


@pytest.mark.parametrize(("mu", "share", "gdp"), [(1.0, 0.4, 0.85), (2.0, 0.4, 0.9)])
def test_enough_trials_come_near(mu, share, gdp):
    one, two = gaussian(7, 20000, mu)
    truth = gaussian_epsilon(mu, DELTA)
    assert share * truth < lower_bound(one, two, DELTA).epsilon < truth
    found = gaussian_lower_bound(one, two, DELTA)
    assert gdp * truth < found.epsilon < truth
    assert found.mu is not None
    assert 0.9 * mu < found.mu < mu
    assert "Gaussian" in found.assumption


# A training with six rounds, as claimed and broken


@pytest.mark.parametrize("use_gaussian", [False, True])
def test_a_correct_mechanism_is_not_refuted(use_gaussian):
    for seed in range(20):
        found = vector_lower_bound(*training(seed, 600), DELTA, gaussian=use_gaussian)
        assert not found.refutes(claim())
    many = vector_lower_bound(*training(0, 20000), DELTA, gaussian=use_gaussian)
    assert (0.9 if use_gaussian else 0.3) * claim() < many.epsilon < claim()


@pytest.mark.parametrize(
    "broken",
    [
        {"drawn": 0.1},
        {"clipped": False},
        {"reused": True},
    ],
    ids=["noise/10", "no clipping", "noise reused"],
)
@pytest.mark.parametrize("use_gaussian", [False, True])
def test_broken_mechanisms_are_refuted(broken, use_gaussian):
    trials = 1500 if use_gaussian else 4000
    honest = {"noise": 4.0}  # claims epsilon 2.5 at delta 1e-5
    found = vector_lower_bound(
        *training(3, trials, **honest, **broken), DELTA, gaussian=use_gaussian
    )
    assert found.refutes(claim(noise=4.0))


def test_a_sum_over_rounds_does_not_see_reused_noise():
    # The reason for a fitted score: the plain projection is blind to it.
    one, two = training(3, 2000, noise=4.0, reused=True)
    signs = np.array([1.0, -1.0] * 3)
    assert lower_bound(one.sum(axis=1), two.sum(axis=1), DELTA).epsilon < 0.5
    score = LinearScore.fit(one[:1000], two[:1000])
    apart = score(one[1000:]).mean() - score(two[1000:]).mean()
    assert apart > 100
    assert score.direction @ signs > 0


@pytest.mark.parametrize("faint", [0.0, 1e-17, 1e-200])
def test_a_mechanism_without_any_noise_is_refuted(faint):
    """One entry tells the canary, the other is rounding or nothing at all."""
    one, two = np.tile([0.05, faint], (300, 1)), np.zeros((300, 2))
    assert vector_lower_bound(one, two, DELTA).refutes(2.0)
    assert contradiction(one, two, [(DELTA, 2.0)]).refutes


def test_a_score_with_more_entries_than_trials_still_works():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 60, 200))
    one[:, 0] += 6.0
    score = LinearScore.fit(one[:30], two[:30])
    assert score(one[30:]).mean() - score(two[30:]).mean() > 1.0


def test_a_useful_direction_is_scaled_to_unit_deviation():
    rng = np.random.default_rng(1)
    covariance = np.array([[1.0, 0.95], [0.95, 1.0]])
    root = np.linalg.cholesky(covariance)
    one, two = rng.normal(size=(2, 4000, 2)) @ root.T
    one = one + np.array([1.0, 0.0])
    score = LinearScore.fit(one, two)
    best = math.sqrt(np.array([1.0, 0.0]) @ np.linalg.solve(covariance, [1.0, 0.0]))
    fresh = rng.normal(size=(4000, 2)) @ root.T
    assert score(fresh).std() == pytest.approx(1, rel=0.05)
    assert score.direction @ [1.0, 0.0] == pytest.approx(best, rel=0.05)


# Many canaries in one run


def one_run_epsilon(
    scores: np.ndarray, included: np.ndarray, delta: float, guesses: list[int], confidence=0.99
) -> float:
    """The largest epsilon that the p-value refutes: the highest `guesses` scores are guessed to be
    in, the lowest out; for several numbers of guesses the confidence is shared."""
    m, best = len(scores), 0.0
    order, alpha = np.argsort(scores, kind="stable"), (1 - confidence) / len(guesses)
    for k in guesses:
        right = int(included[order[m - k :]].sum() + (~included[order[:k]]).sum())
        low, high = 0.0, 1e3
        for _ in range(60):
            middle = (low + high) / 2
            fits = one_run_p_value(m, 2 * k, right, middle, delta) > alpha
            low, high = (low, middle) if fits else (middle, high)
        best = max(best, low)
    return best


def test_p_value_without_delta_is_the_binomial_tail():
    assert one_run_p_value(100, 50, 40, 1.0, 0.0) == pytest.approx(
        binom.sf(39, 50, 1 / (1 + math.exp(-1)))
    )


def test_p_value_grows_with_epsilon_and_delta():
    values = [one_run_p_value(500, 100, 90, e, DELTA) for e in np.linspace(0, 4, 20)]
    assert np.all(np.diff(values) >= 0)
    assert one_run_p_value(500, 100, 90, 1.0, 1e-3) > one_run_p_value(500, 100, 90, 1.0, 1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_run_of_randomised_response_is_covered_and_tight(epsilon):
    # Right guesses are binomial here, so the chance of a bound above the truth is known exactly.
    m, guesses, chance = 200, 100, 1 / (1 + math.exp(-epsilon))
    scores, found = np.arange(float(m)), []
    for right in range(guesses + 1):
        included = np.zeros(m, bool)  # the lowest 50 are guessed out, the highest 50 in
        included[: max(0, guesses // 2 - right)] = True
        included[m - max(0, right - guesses // 2) :] = right > guesses // 2
        found.append(one_run_epsilon(scores, included, 0.0, [guesses // 2], confidence=0.9))
    found = np.array(found)
    assert np.all(np.diff(found) >= 0)
    law = binom.pmf(np.arange(guesses + 1), guesses, chance)
    assert 0.03 < law[found > epsilon].sum() <= 0.1
    assert found[round(guesses * chance)] > 0.4 * epsilon


def test_one_run_of_a_gaussian_stays_below_and_a_broken_one_does_not():
    rng = np.random.default_rng(2)
    included = rng.random(2000) < 0.5
    noise = rng.normal(size=2000)
    truth = gaussian_epsilon(1.0, DELTA)
    assert 0.2 * truth < one_run_epsilon(included + noise, included, DELTA, [50, 200]) < truth
    assert one_run_epsilon(included + noise / 10, included, DELTA, [200, 900]) > truth


# Bad input


@pytest.mark.parametrize("bound", [lower_bound, gaussian_lower_bound])
def test_bad_scores_are_refused(bound):
    good = np.zeros(10)
    for one in (np.zeros(1), np.zeros((5, 2)), np.array([0.0, np.nan])):
        with pytest.raises(DataError):
            bound(one, good, DELTA)
    with pytest.raises(PlanError, match="delta"):
        bound(good, good, 1.0)
    with pytest.raises(PlanError, match="confidence"):
        bound(good, good, DELTA, confidence=1.0)


def test_bad_vectors_and_guesses_are_refused():
    with pytest.raises(DataError):
        LinearScore.fit(np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(DataError):
        vector_lower_bound(np.zeros((3, 2)), np.zeros((3, 2)), DELTA)


def curve(mu):
    """What a Gaussian mechanism promises at several deltas."""
    return [(delta, gaussian_epsilon(mu, delta)) for delta in (DELTA, 1e-3, 0.01, 0.03, 0.1, 0.2)]


def vectors_of(seed, trials, mu):
    return [scores[:, None] for scores in gaussian(seed, trials, mu)]


def test_a_whole_curve_refutes_half_of_the_noise_where_one_point_does_not():
    one, two = vectors_of(1, 5000, 1.0)
    promised = curve(0.5)
    found = contradiction(one, two, promised, confidence=0.999)
    assert found.refutes
    assert found.epsilon > found.claim
    assert found.reach > found.margin
    at_delta = contradiction(one, two, promised[:1], confidence=0.999)
    assert not at_delta.refutes


def test_a_curve_that_holds_is_seldom_contradicted():
    promised = curve(0.5)
    refuted = [
        contradiction(*vectors_of(seed, 200, 0.5), promised, confidence=0.95).refutes
        for seed in range(100)
    ]
    assert sum(refuted) <= 5
