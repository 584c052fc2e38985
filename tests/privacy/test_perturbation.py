"""Output and objective perturbation: bounds checked on neighbours, densities, noise, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from torch import nn

from cupola.errors import DataError, PlanError
from cupola.privacy import perturbation
from cupola.privacy.events import Approximate, Gaussian
from cupola.privacy.newton import minimise
from cupola.privacy.noise import source
from cupola.privacy.perturbation import (
    LOST,
    SOLVER_SHARE,
    Logistic,
    objective_events,
    objective_noise,
    output_events,
    refusal,
    to_layer,
    to_start,
)


class Drawn:
    """A numpy generator, or what is like one, as a source of noise."""

    def __init__(self, rng) -> None:
        self.rng = rng

    def normals(self, n: int) -> np.ndarray:
        return np.asarray(self.rng.standard_normal(n))

    def rounded_normals(self, n: int, deviation: float) -> np.ndarray:
        return np.rint(self.normals(n) * deviation)


def output_perturbation(*how, rng, **more):
    own = rng if hasattr(rng, "normals") else Drawn(rng)
    return perturbation.output_perturbation(*how, rng=own, **more)


def objective_perturbation(*how, rng, **more):
    own = rng if hasattr(rng, "normals") else Drawn(rng)
    return perturbation.objective_perturbation(*how, rng=own, **more)


class Silent:
    """Draws nothing but zeros, so that the minimiser itself comes out."""

    def standard_normal(self, size: int) -> np.ndarray:
        return np.zeros(size)


def gradient(w, rows, sign, w0, mu):
    return -(rows.T @ (sign * expit(-sign * (rows @ w)))) / len(rows) + mu * (w - w0)


def hessian(w, rows, mu):
    s = expit(rows @ w)
    return (rows.T * (s * (1 - s) / len(rows))) @ rows + mu * np.eye(len(w))


def data(seed: int, n: int, d: int, classes: int = 2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * rng.lognormal(size=d), rng.integers(0, classes, n)


# The solver


@pytest.mark.parametrize(("n", "d"), [(1, 1), (40, 7), (30, 600)])
@pytest.mark.parametrize("mu", [1e-4, 1e-1, 10.0])
def test_minimiser_has_the_promised_gradient(n, d, mu):
    x, y = data(3, n, d)
    problem = Logistic(mu, constant=0.3)
    rows, sign = problem.rows(x), problem.signs(y)[0]
    w0 = np.random.default_rng(1).normal(size=d + 1)
    w = minimise(rows, sign, w0, mu, 1e-10, 1e9)
    assert np.linalg.norm(gradient(w, rows, sign, w0, mu)) <= 1e-10


def test_direct_and_conjugate_steps_find_the_same(monkeypatch):
    x, y = data(5, 60, 20)
    problem = Logistic(1e-3)
    rows, sign = problem.rows(x), problem.signs(y)[0]
    direct = minimise(rows, sign, np.zeros(20), 1e-3, 1e-12, 1e9)
    monkeypatch.setattr("cupola.privacy.newton.DIRECT", 0)
    iterative = minimise(rows, sign, np.zeros(20), 1e-3, 1e-12, 1e9)
    assert np.linalg.norm(direct - iterative) <= 2 * 1e-12 / 1e-3


# The norm bound


@given(
    rows=st.lists(
        st.lists(st.floats(-1e308, 1e308), min_size=3, max_size=3), min_size=1, max_size=4
    ),
    bound=st.floats(1e-3, 1e3),
    share=st.just(0.0) | st.floats(0.01, 0.99),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_row_exceeds_the_bound(rows, bound, share):
    problem = Logistic(1.0, bound=bound, constant=share * bound)
    made = problem.rows(np.array(rows))
    for row in made:
        # fsum: the exact sum of the squares' float values; squaring errs by 2^-53 relative
        assert math.sqrt(math.fsum(v * v for v in row)) <= bound * (1 + 4e-16)
    assert made.shape[1] == 3 + (share > 0)


def test_short_rows_are_left_alone():
    x = np.array([[0.1, 0.2], [3.0, 4.0]])
    made = Logistic(1.0, bound=1.0, constant=0.6).rows(x)
    assert made[0].tolist() == [0.1, 0.2, 0.6]
    assert made[1] == pytest.approx([0.48, 0.64, 0.6], rel=1e-12)


# Output perturbation


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    d=st.integers(1, 5),
    mu=st.sampled_from([1e-3, 1e-1, 1.0]),
    far=st.sampled_from([0.0, 1.0, 100.0]),
    classes=st.sampled_from([2, 3]),
    clip=st.sampled_from([math.inf, 0.05]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_neighbours_stay_within_the_sensitivity(seed, n, d, mu, far, classes, clip):
    x, y = data(seed, n, d, classes)
    rng = np.random.default_rng(seed + 1)
    other_x, other_y = x.copy(), y.copy()
    other_x[0], other_y[0] = 10 * rng.normal(size=d), rng.integers(0, classes)
    problem = Logistic(mu, constant=0.5, classes=classes)
    start = far * rng.normal(size=(problem.problems, d + 1))
    one, two = (
        output_perturbation(problem, *pair, start, noise=1.0, rng=Silent(), clip=clip)
        for pair in ((x, y), (other_x, other_y))
    )
    moved = np.linalg.norm(one.weights - two.weights, axis=1)
    assert one.sensitivity == two.sensitivity
    assert np.all(moved <= one.sensitivity)
    assert one.sensitivity <= 1.00001 * min(2 / (n * mu), 2 * clip) + 1e-9


@pytest.mark.parametrize("n", [1, 20])
def test_the_sensitivity_is_nearly_reached(n):
    # Two rows nearly opposite, both badly misclassified by a large start; the rest are saturated.
    mu, lean = 0.01, 0.05
    problem = Logistic(mu)
    start = np.array([[-1e6, 0.0]])
    x = np.tile([-1.0, 0.0], (n, 1))
    one, two = x.copy(), x.copy()
    one[0] = lean, math.sqrt(1 - lean**2)
    two[0] = lean, -math.sqrt(1 - lean**2)
    y = np.ones(n, int)
    a, b = (output_perturbation(problem, z, y, start, noise=1.0, rng=Silent()) for z in (one, two))
    moved = np.linalg.norm(a.weights - b.weights)
    assert 0.99 * a.sensitivity <= moved <= a.sensitivity
    # the published sensitivity, tau / n for a model clipped to tau, is broken by this pair
    tau = np.linalg.norm(a.weights - start)
    assert moved > (1.9 * tau / n if n == 1 else 10 * tau / n)


def test_clipping_caps_the_sensitivity_and_the_change():
    x, y = data(2, 1, 3)
    start = np.zeros((1, 3))
    release = output_perturbation(Logistic(1e-3), x, y, start, noise=1.0, rng=Silent(), clip=0.25)
    assert release.sensitivity == pytest.approx(0.5, rel=1e-5)
    assert np.linalg.norm(release.weights) == pytest.approx(0.25, abs=1e-5)


def test_output_noise_is_as_stated_and_lies_on_the_grid():
    x, y = data(4, 50, 400)
    problem = Logistic(0.1)
    start = np.zeros((1, 400))
    clean = output_perturbation(problem, x, y, start, noise=2.0, rng=Silent())
    rng = np.random.default_rng(8)
    drawn = []
    for _ in range(20):
        release = output_perturbation(problem, x, y, start, noise=2.0, rng=rng)
        assert np.all(release.weights / release.grid == np.rint(release.weights / release.grid))
        drawn.append(release.weights - clean.weights)
    assert release.scale == 2.0 * release.sensitivity
    assert release.sensitivity >= 2 / (50 * 0.1)
    ratio = np.std(drawn) / release.scale  # 8000 draws: standard error .008
    assert abs(ratio - 1) < 0.03
    assert release.grid < 1e-5 * release.scale


def test_one_against_the_rest_is_one_gaussian_per_class():
    x, y = data(4, 50, 4, classes=5)
    problem = Logistic(0.1, constant=0.5, classes=5)
    rng = np.random.default_rng(8)
    release = output_perturbation(problem, x, y, np.zeros((5, 5)), noise=3.0, rng=rng)
    assert release.events == (Gaussian(3.0, 5, "replace-one"),) == output_events(problem, 3.0)
    assert release.weights.shape == (5, 5)


# Objective perturbation


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 8),
    d=st.integers(1, 4),
    mu=st.sampled_from([1e-6, 1e-2, 1.0]),
    epsilon=st.sampled_from([0.1, 1.0, 5.0]),
    spread=st.sampled_from([0.1, 10.0, 1000.0]),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_density_of_the_exact_minimiser_changes_by_at_most_epsilon(seed, n, d, mu, epsilon, spread):
    # b = -(gradient without b) is what made w the minimiser; density of w = p(b) |det Hessian|
    x, y = data(seed, n, d)
    rng = np.random.default_rng(seed + 1)
    other_x, other_y = x.copy(), y.copy()
    other_x[0], other_y[0] = 10 * rng.normal(size=d), rng.integers(0, 2)
    problem = Logistic(mu)
    used, alpha = objective_noise(problem, n, epsilon)
    assert alpha > 0
    assert used >= mu
    w, w0 = spread * rng.normal(size=(2, d))

    def log_density(x, y):
        rows, sign = problem.rows(x), problem.signs(y)[0]
        b = gradient(w, rows, sign, w0, used)
        return -alpha * np.linalg.norm(b) + np.linalg.slogdet(hessian(w, rows, used))[1]

    loss = abs(log_density(x, y) - log_density(other_x, other_y))
    assert loss <= (1 - SOLVER_SHARE) * epsilon * (1 + 1e-9) + 1e-9


def test_both_parts_of_the_privacy_loss_are_nearly_reached():
    n, mu, epsilon = 5, 0.05, 2.0
    problem = Logistic(mu)
    used, alpha = objective_noise(problem, n, epsilon)
    assert used == mu  # the Jacobian takes less than half
    jacobian = math.log1p(1 / (4 * n * mu))
    assert 2 * alpha / n + jacobian == pytest.approx(0.99 * epsilon)
    rows = np.zeros((n, 2))
    one = rows.copy()
    one[0] = 1, 0
    w = np.zeros(2)
    ratio = [np.linalg.slogdet(hessian(w, r, mu))[1] for r in (one, rows)]
    assert ratio[0] - ratio[1] == pytest.approx(jacobian)
    # the noise part: rows nearly opposite and misclassified, noise along their difference
    lean = 0.05
    one[0] = lean, math.sqrt(1 - lean**2)
    two = rows.copy()
    two[0] = lean, -math.sqrt(1 - lean**2)
    w, sign = np.array([-1e4, 0.0]), np.ones(n)
    w0 = w - np.array([0.0, 1e6])
    sizes = [np.linalg.norm(gradient(w, r, sign, w0, mu)) for r in (one, two)]
    assert alpha * abs(sizes[0] - sizes[1]) > 0.99 * 2 * alpha / n


def test_too_little_strong_convexity_is_made_up_for():
    problem = Logistic(1e-9)
    used, alpha = objective_noise(problem, 100, 0.5)
    assert math.log1p(1 / (4 * 100 * used)) == pytest.approx(0.25)
    assert 2 * alpha / 100 == pytest.approx(0.5 * 0.99 - 0.25)
    x, y = data(0, 100, 3)
    release = objective_perturbation(
        problem, x, y, np.zeros((1, 3)), epsilon=0.5, rng=np.random.default_rng(0)
    )
    assert release.mu == used > 1e-9


def test_objective_noise_is_spherical_with_gamma_norm():
    # Zero rows have no loss gradient but l'(0) * 0 = 0: w - w0 = -b / mu, so the noise shows.
    p, draws, mu = 6, 3000, 2.0
    problem = Logistic(mu)
    x, y = np.zeros((10, p)), np.zeros(10, int)
    rng = np.random.default_rng(5)
    start = np.ones((1, p))
    made = [
        objective_perturbation(problem, x, y, start, epsilon=1.0, rng=rng) for _ in range(draws)
    ]
    b = np.concatenate([mu * (start - r.weights) for r in made]) / made[0].scale
    norms = np.linalg.norm(b, axis=1)
    assert norms.mean() == pytest.approx(p, abs=5 * math.sqrt(p / draws))
    assert norms.var() == pytest.approx(p, rel=0.15)
    directions = b / norms[:, None]
    assert np.abs(directions.mean(0)).max() < 5 / math.sqrt(p * draws)
    assert directions.T @ directions / draws == pytest.approx(np.eye(p) / p, abs=0.02)
    # direction and norm are independent
    assert np.abs(directions.T @ (norms - norms.mean()) / draws).max() < 0.1


def test_objective_release_solves_the_noisy_problem():
    x, y = data(9, 80, 5, classes=3)
    problem = Logistic(0.05, constant=0.4, classes=3)
    start = np.random.default_rng(2).normal(size=(3, 6))

    class Kept:
        """A generator that remembers."""

        def __init__(self):
            self.rng, self.seen = np.random.default_rng(6), []

        def standard_normal(self, size):
            self.seen.append(self.rng.standard_normal(size))
            return self.seen[-1]

    rng = Kept()
    release = objective_perturbation(problem, x, y, start, epsilon=3.0, rng=rng)
    assert release.events == (Approximate(1.0, LOST, 3, "replace-one"),)
    assert release.events == objective_events(problem, 3.0)
    rows = problem.rows(x)
    for k, sign in enumerate(problem.signs(y)):
        direction, others = rng.seen[4 * k : 4 * k + 2]
        b = direction / np.linalg.norm(direction) * (others @ others / 2) * release.scale
        exact = minimise(rows, sign, start[k], release.mu, 1e-14, 1e9, b)
        # the noise that hides the solver's error: tiny, yet far larger than that error
        direction, others = rng.seen[4 * k + 2 : 4 * k + 4]
        error = release.tolerance / release.mu + math.sqrt(6) * release.grid / 2
        v = direction / np.linalg.norm(direction) * (others @ others) * error / SOLVER_SHARE
        assert 100 * error < np.linalg.norm(v) < 1e-6
        assert np.linalg.norm(release.weights[k] - exact - v) <= 3 * error
    assert np.all(release.weights / release.grid == np.rint(release.weights / release.grid))


def test_releases_repeat_with_the_generator_and_not_without():
    x, y = data(1, 30, 4)
    start = np.zeros((1, 4))

    def both(seed):
        rng = np.random.default_rng(seed)
        out = output_perturbation(Logistic(0.1), x, y, start, noise=1.0, rng=rng)
        inner = objective_perturbation(Logistic(0.1), x, y, start, epsilon=1.0, rng=rng)
        return np.concatenate([out.weights, inner.weights])

    assert np.array_equal(both(1), both(1))
    assert not np.any(both(1) == both(2))


def test_a_real_site_draws_from_the_operating_system():
    x, y = data(1, 30, 4)
    start = np.zeros((1, 4))
    made = [
        mechanism(Logistic(0.1), x, y, start, rng=source(None, "noise", 1), **cost).weights
        for mechanism, cost in (
            (output_perturbation, {"noise": 1.0}),
            (objective_perturbation, {"epsilon": 1.0}),
        )
        for _ in range(2)
    ]
    assert not np.any(made[0] == made[1])
    assert not np.any(made[2] == made[3])


def test_a_private_model_still_learns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 5))
    y = (x @ np.array([1.0, -1, 0.5, 0, 0]) > 0.2).astype(int)
    problem = Logistic(0.01, constant=0.4)
    start = np.zeros((1, 6))
    for release in (
        output_perturbation(problem, x, y, start, noise=4.0, rng=rng),
        objective_perturbation(problem, x, y, start, epsilon=1.0, rng=rng),
    ):
        right = (problem.rows(x) @ release.weights[0] > 0) == (y == 1)
        assert right.mean() > 0.85


# Models, and what is refused


@pytest.mark.parametrize("outputs", [1, 2, 4])
@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_goes_there_and_back(outputs, biased):
    rng = np.random.default_rng(0)
    problem = Logistic(1.0, constant=0.5 * biased, classes=max(outputs, 2))
    weight = rng.normal(size=(outputs, 3))
    bias = rng.normal(size=outputs) if biased else None
    start = to_start(problem, weight, bias)
    assert start.shape == (problem.problems, 3 + biased)
    again = to_start(problem, *to_layer(problem, start, outputs))
    assert again == pytest.approx(start)
    x = rng.normal(size=(1, 3)) / 10
    logits = weight @ x[0] + (bias if biased else 0)
    inner = problem.rows(x) @ start.T
    assert inner[0] == pytest.approx(logits[1:] - logits[:1] if outputs == 2 else logits)


@pytest.mark.parametrize(
    ("module", "loss", "options", "reason"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), "cross_entropy", {}, "softmax over 10"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "log", {}, "ReLU ('1')"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "log", {}, "2 linear layers"),
        (nn.Conv2d(1, 2, 3), "log", {}, "Conv2d"),
        (nn.Linear(4, 1), "squared_error", {}, "squared_error"),
        (nn.Linear(4, 2), "cross_entropy", {"label_smoothing": 0.1}, "smoothing"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(module, loss, options, reason):
    text = refusal(module, loss, options=options)
    assert text is not None
    assert reason in text
    assert "dp-sgd" in text


def test_what_fits_is_not_refused():
    assert refusal(nn.Linear(4, 1), "log") is None
    assert refusal(nn.Linear(4, 2), "cross_entropy", options={"label_smoothing": 0.0}) is None
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    assert refusal(model, "cross_entropy", one_vs_rest=True) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"mu": 0.0},
        {"mu": -1.0},
        {"mu": math.nan},
        {"mu": 1.0, "bound": 0.0},
        {"mu": 1.0, "constant": 1.0},
        {"mu": 1.0, "constant": -0.1},
        {"mu": 1.0, "classes": 1},
        {"mu": 1.0, "tolerance": 0.0},
    ],
)
def test_impossible_problems_are_refused(settings):
    with pytest.raises(PlanError) as caught:
        Logistic(**settings)
    if settings["mu"] != 1.0:
        assert "dp-sgd" in str(caught.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_noise_is_refused(value):
    x, y = data(0, 5, 2)
    rng, start = np.random.default_rng(0), np.zeros((1, 2))
    with pytest.raises(PlanError, match="noise"):
        output_perturbation(Logistic(1.0), x, y, start, noise=value, rng=rng)
    with pytest.raises(PlanError, match="epsilon"):
        objective_perturbation(Logistic(1.0), x, y, start, epsilon=value, rng=rng)


def test_a_start_too_far_for_exact_noise_is_refused():
    x, y = data(0, 5, 2)
    start = np.full((1, 2), 1e15)
    with pytest.raises(PlanError, match="too large"):
        output_perturbation(Logistic(1.0), x, y, start, noise=1.0, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("x", "y", "start", "error"),
    [
        (np.zeros((0, 2)), np.zeros(0, int), np.zeros((1, 2)), DataError),
        (np.zeros((3, 2)), np.zeros(2, int), np.zeros((1, 2)), DataError),
        (np.full((3, 2), np.nan), np.zeros(3, int), np.zeros((1, 2)), DataError),
        (np.zeros((3, 2)), np.array([0, 1, 2]), np.zeros((1, 2)), DataError),
        (np.zeros((3, 2)), np.array([0, 1, 0.5]), np.zeros((1, 2)), DataError),
        (np.zeros((3, 2)), np.zeros(3, int), np.zeros((2, 2)), PlanError),
        (np.zeros((3, 2)), np.zeros(3, int), np.full((1, 2), np.inf), PlanError),
    ],
)
def test_bad_data_is_refused(x, y, start, error):
    rng = np.random.default_rng(0)
    with pytest.raises(error):
        output_perturbation(Logistic(1.0), x, y, start, noise=1.0, rng=rng)
    with pytest.raises(error):
        objective_perturbation(Logistic(1.0), x, y, start, epsilon=1.0, rng=rng)
