"""Exact discrete Gaussian noise: its law, in the middle and in the tails, fast and slow."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from discrete_reference import reference
from scipy import stats

from cupola.base.randomness import generator
from cupola.errors import PlanError
from cupola.privacy import discrete
from cupola.privacy.discrete import discrete_gaussian, exact_sigma
from cupola.privacy.noise import OperatingSystem, Simulated

LIKELY = 1e-6  # a fixed seed passes or fails for good; a false alarm was this unlikely


def law(sigma: float, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers from -reach to reach and their probabilities."""
    x = np.arange(-reach, reach + 1)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    return x, mass / mass.sum()


def p_value(drawn: np.ndarray, sigma: float) -> float:
    """Chi-square of counts against exact probabilities; rare values together."""
    x, p = law(sigma, math.ceil(12 * sigma) + 2)
    assert np.abs(drawn).max() <= x[-1]
    counts = np.bincount(drawn + x[-1], minlength=len(x))
    often = p * len(drawn) >= 10
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(p[often], p[~often].sum()) * len(drawn)
    if expected[-1] < 1e-3:
        assert observed[-1] <= 2
        observed, expected = observed[:-1], expected[:-1]
        expected *= observed.sum() / expected.sum()
    return 1.0 if len(observed) == 1 else float(stats.chisquare(observed, expected).pvalue)


class Counting:
    """A source that tells how many words were used."""

    def __init__(self, random):
        self.random, self.used = random, 0

    def words(self, n):
        self.used += n
        return self.random.words(n)


class Scripted:
    """A source that starts with given words."""

    def __init__(self, words, random):
        self.given, self.random = list(words), random

    def words(self, n):
        first = np.array(self.given[:n], np.uint64)
        del self.given[:n]
        return np.concatenate([first, self.random.words(n - len(first))])


@pytest.mark.parametrize("sigma", [0.01, 0.3, 0.5, 1.0, 1.0001, 2.5, 7.0, 40.25])
def test_the_law_is_the_discrete_gaussian(sigma):
    drawn = discrete_gaussian(sigma, 200_000, Simulated(1, "discrete", 1))
    assert drawn.dtype == np.int64
    assert p_value(drawn, float(exact_sigma(sigma))) > LIKELY


@pytest.mark.parametrize("sigma", [Fraction(1, 2), Fraction(1), Fraction(7, 3), Fraction(20)])
def test_the_reference_has_the_same_law(sigma):
    random = Simulated(2, "discrete", 1)
    drawn = np.array([reference(sigma, random) for _ in range(1500)])
    assert p_value(drawn, float(sigma)) > LIKELY


@pytest.mark.parametrize("sigma", [2.0**10 + 0.3, 2.0**20, 3.7 * 2.0**24])
def test_large_sigmas_are_gaussian_to_the_last_bit(sigma):
    drawn = discrete_gaussian(sigma, 100_000, Simulated(3, "discrete", 1))
    assert stats.kstest(drawn / sigma, "norm").pvalue > LIKELY
    assert abs(drawn.var() / sigma**2 - 1) < 6 * math.sqrt(2 / len(drawn))
    # The low bits are uniform, so that nothing is left of a value they are added to.
    assert stats.chisquare(np.bincount(drawn % 64, minlength=64)).pvalue > LIKELY


def test_both_samplers_agree_where_no_table_reaches():
    sigma = Fraction(2**20)
    random = Simulated(4, "discrete", 1)
    slow = np.array([reference(sigma, random) for _ in range(800)])
    fast = discrete_gaussian(sigma, 50_000, random)
    assert stats.ks_2samp(slow, fast).pvalue > LIKELY


@pytest.mark.parametrize("sigma", [0.7, 3.0, 2.0**16])
def test_it_is_symmetric_and_has_the_variance(sigma):
    drawn = discrete_gaussian(sigma, 400_000, Simulated(5, "discrete", 1))
    assert stats.binomtest(int((drawn > 0).sum()), int((drawn != 0).sum())).pvalue > LIKELY
    x, p = law(min(sigma, 500.0), 6000)
    variance = float(p @ x**2) if sigma < 500 else sigma**2
    assert variance <= sigma**2 * (1 + 1e-12)
    assert abs(drawn.var() / variance - 1) < 6 * math.sqrt(2.5 / len(drawn))


def test_tails_come_as_often_as_they_should():
    sigma, n = 1.5, 3_000_000
    drawn = np.abs(discrete_gaussian(sigma, n, Simulated(6, "discrete", 1)))
    x, p = law(float(exact_sigma(sigma)), 40)
    for far in (5, 6, 7):
        beyond = float(p[np.abs(x) >= far].sum())
        assert stats.binomtest(int((drawn >= far).sum()), n, beyond).pvalue > LIKELY


def test_unseeded_draws_have_the_law_and_never_repeat():
    one, other = (discrete_gaussian(3.0, 100_000, OperatingSystem()) for _ in range(2))
    assert not np.array_equal(one, other)
    assert p_value(one, 3.0) > 1e-9


def test_seeded_draws_repeat():
    one, other = (discrete_gaussian(9.0, 1000, Simulated(7, "discrete", 2, 3)) for _ in range(2))
    assert np.array_equal(one, other)


def test_new_bits_leave_the_older_draws_as_they_were():
    random, plain = Simulated(1, "noise", 2, 3), generator(1, "noise", 2, 3)
    assert np.array_equal(random.uniforms(5), plain.random(5))
    assert np.array_equal(random.normals(5), plain.standard_normal(5))


@pytest.mark.parametrize("x", [0.0, 0.1, 0.5, 1.0])
def test_the_parts_have_their_probabilities(x):
    n, random = 200_000, Simulated(8, "discrete", 1)
    whole = np.full(n, round(x * 2**50), np.uint64)
    for found, p in (
        (discrete._below(whole, random), x),
        (discrete._exp(whole, random), math.exp(-x)),
        (discrete._exp_square(whole, random), math.exp(-(x**2) / 2)),
    ):
        assert stats.binomtest(int(found.sum()), n, p).pvalue > LIKELY
    for m in (2, 3, 7):
        assert stats.binomtest(int(discrete._one_in(m, n, random).sum()), n, 1 / m).pvalue > LIKELY


@pytest.mark.parametrize("bits", [64, 128, 640])
def test_the_ladder_is_the_distribution_function_rounded_down(bits):
    steps = discrete._ladder(bits)
    with localcontext() as context:
        context.prec = bits  # decimal digits: far more than enough
        masses = [(-Decimal(k * k) / 2).exp() for k in range(80)]
        for k, step in enumerate(steps):
            assert step == math.floor(sum(masses[: k + 1]) / sum(masses) * 2**bits)
    assert steps[-1] == 2**bits - 1


def test_bits_that_lie_on_a_step_are_decided_by_further_bits():
    first = discrete._ladder(64)[0]
    rest = discrete._ladder(128)[0] - (first << 64)
    for more, k in ((rest - 1, 0), (rest + 1, 1)):
        random = Scripted([first, more], Simulated(9, "discrete", 1))
        assert discrete._ladder_steps(1, random)[0] == k
    last = 2**64 - 1
    random = Scripted([last, 0], Simulated(9, "discrete", 1))
    assert discrete._ladder_steps(1, random)[0] == 9
    assert discrete._ladder_steps(1, Scripted([first - 1], random))[0] == 0
    assert discrete._ladder_steps(1, Scripted([first + 1], random))[0] == 1


def test_sigma_is_never_below_what_was_asked_for():
    for sigma in (2.0**-10, 0.1, 1 / 3, 1.0, math.pi, 1e5, 2.0**26 + 0.5, 2.0**30):
        exact = exact_sigma(sigma)
        assert Fraction(sigma) <= exact <= Fraction(sigma) * (1 + Fraction(1, 10**6))
    for sigma in (0.0, 1e-4, 2.0**31, math.inf):
        with pytest.raises(PlanError, match="grid steps"):
            discrete_gaussian(sigma, 1, Simulated(1, "discrete", 1))


def test_none_and_one_are_numbers_of_draws_too():
    random = Counting(Simulated(1, "discrete", 1))
    assert discrete_gaussian(2.0, 0, random).shape == (0,)
    assert random.used == 0
    assert discrete_gaussian(2.0, 1, random).shape == (1,)
    discrete_gaussian(2.0**20, 100_000, random)
    assert random.used < 12 * 100_000  # 64 bits each
