"""Correlated noise for prefix sums: dense matrices, all participation patterns, published figures."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.errors import PlanError
from cupola.privacy.accounting import epsilon
from cupola.privacy.events import Gaussian
from cupola.privacy.matrix import Toeplitz, Tree, find

NAMES = ["tree", "tree-honaker", "toeplitz"]


def encoder(name, steps):
    """C as a dense matrix, rows named by the numbers of draws."""
    if name == "toeplitz":
        column = [math.comb(2 * i, i) / 4**i for i in range(steps)]
        return {i: np.array([column[i - j] if i >= j else 0.0 for j in range(steps)])
                for i in range(steps)}  # fmt: skip
    rows = {}
    for level in range(steps.bit_length()):
        for place in range(steps >> level):
            row = np.zeros(steps)
            row[place << level : (place + 1) << level] = 1
            rows[place * 64 + level] = row
    return rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 13])
def test_the_factors_give_prefix_sums(name, steps):
    """B C = A: what is released is the prefix sum and nothing else."""
    rows = encoder(name, steps)
    for t in range(1, steps + 1):
        total = sum(weight * rows[number] for number, weight in find(name).weights(t))
        assert np.allclose(total, np.arange(steps) < t, atol=1e-12)


def patterns(steps, participations, separation):
    for k in range(1, participations + 1):
        for places in itertools.combinations(range(steps), k):
            if all(b - a >= separation for a, b in itertools.pairwise(places)):
                yield places


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("steps", "participations", "separation"),
    [(1, 1, 1), (7, 1, 1), (8, 2, 3), (8, 8, 1), (9, 3, 2), (10, 3, 4), (12, 2, 5)],
)
def test_sensitivity_covers_every_pattern(name, steps, participations, separation):
    matrix = np.array(list(encoder(name, steps).values()))
    # Contributions that point the same way are the worst: all entries are non-negative.
    worst = max(
        np.linalg.norm(matrix[:, list(places)].sum(1))
        for places in patterns(steps, participations, separation)
    )
    stated = find(name).sensitivity(steps, participations, separation)
    assert stated >= worst - 1e-12
    if name == "toeplitz" or participations == 1:
        assert stated == pytest.approx(worst)


def test_opposite_contributions_are_not_worse():
    matrix = np.array(list(encoder("tree", 8).values()))
    stated = find("tree").sensitivity(8, 3, 2)
    for places in patterns(8, 3, 2):
        for signs in itertools.product((-1, 1), repeat=len(places)):
            assert np.linalg.norm(matrix[:, list(places)] @ signs) <= stated + 1e-12


def test_errors_at_1600_steps():
    """Independent noise 28.3; the others less, at equal privacy."""
    assert math.sqrt(np.arange(1, 1601).mean()) == pytest.approx(28.3, abs=0.05)
    assert find("tree").error(1600) == pytest.approx(7.54, abs=0.02)
    assert find("toeplitz").error(1600) == pytest.approx(3.25, abs=0.02)


def test_honaker_error_at_1600_steps():
    variances = [2.0**h / (2.0 ** (h + 1) - 1) for h in range(11)]
    mean = np.mean([sum(variances[h] for h in range(11) if t >> h & 1) for t in range(1, 1601)])
    assert math.sqrt(mean) * find("tree-honaker").sensitivity(1600) == pytest.approx(5.73, abs=0.02)
    for t in (1, 2, 6, 77, 128):
        expected = sum(variances[h] for h in range(11) if t >> h & 1)
        assert find("tree-honaker").variance(t) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("noise", "published"), [(1.13, 18.71), (2.33, 7.83), (4.03, 4.19), (6.21, 2.60), (8.83, 1.77)]
)
def test_epsilons_of_fedpt_table_5(noise, published):
    """1600 rounds, nobody twice, largest complete subtree of 1024 leaves, delta 1e-6, RDP."""
    event = Gaussian(noise / find("tree").sensitivity(1600))
    assert round(epsilon([event], 1e-6, method="rdp"), 2) == published


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 40))
def test_more_participation_or_closer_never_costs_less(steps, k, b):
    for mechanism in (Tree(), Toeplitz()):
        here = mechanism.sensitivity(steps, k, b)
        assert mechanism.sensitivity(steps, k + 1, b) >= here - 1e-12
        assert mechanism.sensitivity(steps, k, b + 1) <= here + 1e-9
        assert mechanism.sensitivity(steps + 1, k, b) >= here - 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_drawn_noise_has_the_stated_covariance_and_needs_no_memory(name):
    steps, size = 6, 40_000
    mechanism = find(name)

    def draw(number):
        return np.random.Generator(np.random.Philox(key=number + 1)).standard_normal(size)

    rows = np.array([mechanism.noise(t, draw) for t in range(1, steps + 1)])
    again = mechanism.noise(4, draw)
    assert np.array_equal(again, rows[3])
    numbers = sorted({n for t in range(1, steps + 1) for n, _ in mechanism.weights(t)})
    dense = np.zeros((steps, len(numbers)))
    for t in range(1, steps + 1):
        for number, weight in mechanism.weights(t):
            dense[t - 1, numbers.index(number)] += weight
    found, stated = rows @ rows.T / size, dense @ dense.T
    scale = np.sqrt(np.outer(stated.diagonal(), stated.diagonal()))
    assert np.abs(found - stated).max() < 5 * scale.max() / math.sqrt(size)


def test_bad_input():
    with pytest.raises(PlanError, match="unknown"):
        find("bush")
    with pytest.raises(PlanError, match="separation = 0"):
        find("tree").sensitivity(5, 1, 0)
    with pytest.raises(PlanError, match="step 0"):
        find("tree").noise(0, lambda _: np.zeros(1))
