"""Prefix mechanisms against dense matrices, all participation patterns, and drawn noise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.errors import PlanError
from cupola.privacy import matrix
from cupola.privacy.matrix import find, names

ALL = names()
SIZES = (1, 2, 3, 7, 8, 13, 16, 21)


def draws(seed: int, size: int):
    """draw(i): the i-th block, always the same."""

    def draw(i: int) -> np.ndarray:
        return np.random.Generator(np.random.Philox(key=seed, counter=i)).standard_normal(size)

    return draw


def patterns(steps: int, participations: int, separation: int, start: int = 0):
    """All sets of one to so many steps, from `start` on, that are at least so far apart."""
    for first in range(start, steps):
        yield [first]
        if participations > 1:
            after = first + separation
            for more in patterns(steps, participations - 1, separation, after):
                yield [first, *more]


def worst(name: str, steps: int, participations: int, separation: int) -> float:
    """The sensitivity by trying every pattern on the dense matrix."""
    _, right = find(name).dense(steps)
    products = right.T @ right
    found = patterns(steps, participations, separation)
    return math.sqrt(max(products[np.ix_(chosen, chosen)].sum() for chosen in found))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("steps", SIZES)
def test_factors_multiply_to_prefix_sums_and_rows_are_causal(name, steps):
    left, right = find(name).dense(steps)
    np.testing.assert_allclose(left @ right, np.tril(np.ones((steps, steps))), atol=1e-12)
    assert np.all(right >= 0)  # what makes contributions in one direction the worst
    for t in range(steps):  # row t uses only what is complete after step t
        assert not np.any(right[left[t] != 0][:, t + 1 :])


@pytest.mark.parametrize("name", ALL)
def test_noise_is_the_dense_row_times_the_draws(name):
    steps, draw = 21, draws(5, 4)
    left, _ = find(name).dense(steps)
    mechanism = find(name)
    used = sorted({number for t in range(1, steps + 1) for number, _ in mechanism.weights(t)})
    blocks = np.array([draw(number) for number in used])
    fast = np.array([mechanism.noise(t, draw) for t in range(1, steps + 1)])
    np.testing.assert_allclose(fast, left @ blocks, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_drawn_noise_has_the_stated_covariance(name):
    # 20,000 independent coordinates: the estimate of a correlation errs by 0.007 in one deviation.
    steps, size = 12, 20_000
    mechanism, draw = find(name), draws(7, size)
    noise = np.array([mechanism.noise(t, draw) for t in range(1, steps + 1)])
    left, _ = mechanism.dense(steps)
    expected = left @ left.T
    scale = np.sqrt(np.diag(expected))
    difference = (noise @ noise.T / size - expected) / np.outer(scale, scale)
    assert np.abs(difference).max() < 5 * math.sqrt(2 / size)
    assert np.abs(noise.mean(axis=1) / scale).max() < 5 / math.sqrt(size)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("steps", SIZES)
def test_one_participation_is_the_largest_column(name, steps):
    _, right = find(name).dense(steps)
    largest = np.linalg.norm(right, axis=0).max()
    assert find(name).sensitivity(steps) == pytest.approx(largest, rel=1e-11)
    assert find(name).sensitivity(steps) >= largest


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("separation", [1, 2, 3, 4, 5, 7])
def test_the_worst_of_all_patterns_is_the_sensitivity(name, separation):
    for steps in range(1, 13):  # most of them fill no tree
        for participations in (2, 3, 4, 12):
            stated = find(name).sensitivity(steps, participations, separation)
            found = worst(name, steps, participations, separation)
            assert found <= stated
            assert stated == pytest.approx(found, rel=1e-11)


@given(
    steps=st.integers(13, 24),
    participations=st.integers(2, 24),
    separation=st.integers(3, 9),
    name=st.sampled_from(ALL),
)
@settings(max_examples=60, deadline=None)
def test_the_worst_of_all_patterns_is_the_sensitivity_of_longer_runs(
    steps, participations, separation, name
):
    stated = find(name).sensitivity(steps, participations, separation)
    assert stated == pytest.approx(worst(name, steps, participations, separation), rel=1e-11)


def test_four_turns_in_forty_steps():
    # By blocks alone it would be sqrt(35): no one pattern fills the blocks of all levels.
    assert find("tree").sensitivity(40, 4, 10) == pytest.approx(math.sqrt(30))
    assert find("tree").sensitivity(40, 4, 10) == pytest.approx(worst("tree", 40, 4, 10))
    assert find("tree-honaker").sensitivity(40, 4, 10) == pytest.approx(math.sqrt(40))


@pytest.mark.parametrize("name", ["tree", "tree-honaker"])
@pytest.mark.parametrize(("steps", "separation"), [(1000, 4), (3001, 100), (4095, 77)])
def test_drawn_patterns_stay_below_the_sensitivity_of_thousands_of_steps(name, steps, separation):
    rng, mechanism = np.random.default_rng(8), find(name)
    _, right = mechanism.dense(steps) if steps < 2000 else (None, None)
    for participations in (3, steps // separation // 2, steps):
        stated = mechanism.sensitivity(steps, participations, separation) ** 2
        for spread in (1, 1 + separation // 8, 2 * separation):
            chosen = np.cumsum(separation - 1 + rng.integers(1, spread + 1, steps)) - separation
            chosen = chosen[chosen < steps][:participations]
            assert squares_of_blocks(name, steps, chosen) <= stated
            if right is not None:
                direct = float(np.sum(right[:, chosen].sum(axis=1) ** 2))
                assert squares_of_blocks(name, steps, chosen) == pytest.approx(direct)


def squares_of_blocks(name: str, steps: int, chosen: np.ndarray) -> float:
    """The squared norm of a pattern by counting blocks: no dense matrix."""
    total = 0
    for height in range(steps.bit_length()):
        counts = np.bincount(chosen >> height, minlength=steps >> height)[: steps >> height]
        total += int(np.sum((counts if name == "tree-honaker" else counts[::2]) ** 2))
    return total


def test_beyond_so_many_steps_a_tree_has_an_upper_bound(monkeypatch):
    exact = {name: find(name).sensitivity(300, 30, 10) for name in ("tree", "tree-honaker")}
    monkeypatch.setattr(matrix, "EXACT_STEPS", 0)
    matrix._remembered.cache_clear()
    for name, value in exact.items():
        assert value <= find(name).sensitivity(300, 30, 10) <= 1.15 * value
    matrix._remembered.cache_clear()


@pytest.mark.parametrize("separation", [1, 2, 5])
def test_the_earliest_pattern_is_the_worst_for_toeplitz(separation):
    steps, participations = 13, 3
    _, right = find("toeplitz").dense(steps)
    earliest = list(range(0, steps, separation))[:participations]
    norms = {
        tuple(chosen): np.linalg.norm(right[:, chosen].sum(axis=1))
        for chosen in patterns(steps, participations, separation)
    }
    assert max(norms, key=norms.__getitem__) == tuple(earliest)


@pytest.mark.parametrize("name", ALL)
def test_no_signs_or_directions_of_contributions_are_worse(name):
    rng = np.random.default_rng(3)
    _, right = find(name).dense(23)
    stated = find(name).sensitivity(23, 4, 5)
    for _ in range(500):
        chosen = np.cumsum(rng.integers(5, 7, size=4)) - 5
        signs = np.zeros(23)
        signs[chosen] = rng.choice([-1, 1], size=4)
        some = rng.normal(size=(4, 3))
        turned = np.zeros((23, 3))
        turned[chosen] = some / np.linalg.norm(some, axis=1, keepdims=True)
        assert np.linalg.norm(right @ signs) <= stated
        assert np.linalg.norm(right @ turned) <= stated


def test_a_plain_tree_counts_only_blocks_that_some_prefix_uses():
    # Two steps: the prefix sums are x0 + z0 and x0 + x1 + z01; the block of x1 alone is not seen.
    assert find("tree").sensitivity(2, 2, 1) == pytest.approx(math.sqrt(1 + 4))
    assert find("tree-honaker").sensitivity(2, 2, 1) == pytest.approx(math.sqrt(1 + 1 + 4))


def variances(name: str, steps: int) -> np.ndarray:
    """Of the noise of every step, for draws of unit deviation."""
    left, _ = find(name).dense(steps)
    return np.sum(left**2, axis=1)


def test_errors_at_1600_steps():
    # Root mean square error of the prefix sums at equal privacy.
    figures = {
        name: round(find(name).sensitivity(1600) * math.sqrt(variances(name, 1600).mean()), 2)
        for name in ALL
    }
    assert figures == {"independent": 28.29, "tree": 7.54, "tree-honaker": 5.73, "toeplitz": 3.25}


def test_honaker_variance_is_the_best_bottom_up_combination():
    # A block of height 1: own draw (variance 1) and two halves (variance 2): 1 / (1 + 1/2).
    assert variances("tree-honaker", 4).tolist() == pytest.approx([1, 2 / 3, 5 / 3, 4 / 7])


@given(st.integers(1, 10_000), st.integers(1, 50), st.integers(1, 300), st.sampled_from(ALL))
@settings(max_examples=60, deadline=None)
def test_sensitivity_grows_with_participations_and_falls_with_separation(steps, k, b, name):
    mechanism = find(name)
    here = mechanism.sensitivity(steps, k, b)
    assert mechanism.sensitivity(steps, k + 1, b) >= here * (1 - 1e-9)
    assert mechanism.sensitivity(steps, k, b + 1) <= here * (1 + 1e-9)
    assert mechanism.sensitivity(steps + 1, k, b) >= here * (1 - 1e-9)


def test_more_participations_than_fit_cost_no_more():
    for name in ALL:
        mechanism = find(name)
        assert mechanism.sensitivity(10, 99, 4) == mechanism.sensitivity(10, 3, 4)


def test_many_steps_are_quick():
    for name in ("tree", "tree-honaker"):  # the slowest of many patterns: some 0.1 s each
        assert find(name).sensitivity(4095, 54, 77) > 1
        assert find(name).sensitivity(4095, 584, 7) > 1
    assert find("toeplitz").sensitivity(200_000, 1000, 7) > 1
    assert find("tree").sensitivity(10**9, 1000, 7) > 1


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: find("tree").sensitivity(0), "steps"),
        (lambda: find("tree").sensitivity(3, 0), "participations"),
        (lambda: find("tree").sensitivity(3, 1, 0), "separation"),
        (lambda: find("tree").sensitivity(3.5), "steps"),
        (lambda: find("toeplitz").noise(0, draws(1, 1)), "t"),
        (lambda: find("cholesky"), "cholesky"),
    ],
)
def test_bad_input_is_named(call, field):
    with pytest.raises(PlanError, match=field):
        call()
