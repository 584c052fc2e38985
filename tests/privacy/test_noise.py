"""Noise: its law, its grid, and where it comes from."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cupola.privacy import noise as noise_module
from cupola.privacy.noise import (
    GRID_BITS,
    OperatingSystem,
    Simulated,
    add_noise,
    grid,
    noise_scale,
    source,
)


@pytest.mark.parametrize(
    "random", [OperatingSystem(), Simulated(1, "noise", 2, 3)], ids=["system", "simulated"]
)
def test_normals_are_standard_normal(random):
    drawn = random.normals(200_000)
    # A false alarm has probability 1e-9, also for the unseeded source.
    assert stats.kstest(drawn, "norm").pvalue > 1e-9
    assert abs(drawn.var() - 1) < 6.2 * math.sqrt(2 / len(drawn))


def test_uniforms_are_uniform_in_the_half_open_interval():
    drawn = OperatingSystem().uniforms(200_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-9


@pytest.mark.parametrize("seed", [None, 7])
def test_added_noise_has_the_stated_variance(seed):
    value = np.linspace(-5, 5, 100_000)
    noise, clip = 1.3, 0.7
    added = add_noise(value, clip, noise, source(seed, "noise", 1)) - value
    assert stats.kstest(added / (noise * clip), "norm").pvalue > 1e-9
    assert abs(added.std() / (noise * clip) - 1) < 6.2 / math.sqrt(2 * len(added))


def test_a_source_without_seed_never_repeats():
    one, other = source(None, "noise", 1, 1), source(None, "noise", 1, 1)
    assert isinstance(one, OperatingSystem)
    assert not np.array_equal(one.normals(8), other.normals(8))


def test_seeded_noise_repeats_and_differs_between_sites_rounds_and_purposes():
    first = source(5, "noise", 1, 1).normals(8)
    assert np.array_equal(first, source(5, "noise", 1, 1).normals(8))
    for other in (
        source(5, "noise", 1, 2),
        source(5, "noise", 2, 1),
        source(5, "batches", 1, 1),
        source(6, "noise", 1, 1),
    ):
        assert not np.array_equal(first, other.normals(8))


@given(
    st.floats(-1e3, 1e3, allow_nan=False),
    st.floats(1e-3, 1e3),
    st.floats(0.1, 20),
    st.integers(0, 5),
)
def test_releases_lie_on_a_grid_that_does_not_depend_on_the_value(value, clip, noise, seed):
    size = 3
    step = grid(noise_scale(clip, noise, size))
    released = add_noise(np.full(size, value), clip, noise, source(seed, "noise", 1))
    assert np.array_equal(np.rint(released / step) * step, released)
    assert math.log2(step) == round(math.log2(step))
    assert step <= noise_scale(clip, noise, size) * 2.0**-GRID_BITS


def test_rounding_the_value_is_covered_by_more_noise():
    # Two neighbours at distance 1 can be one grid step further apart in every coordinate.
    size, noise = 10**6, 1.0
    deviation = noise_scale(1.0, noise, size)
    assert deviation >= noise * (1 + grid(deviation) * math.sqrt(size))


def test_no_noise_changes_nothing():
    value = np.random.default_rng(0).normal(size=5)
    assert np.array_equal(add_noise(value, 1.0, 0.0, OperatingSystem()), value)


def test_every_grid_point_can_come_up_in_the_tails():
    """A value that one data set can release and its neighbour cannot would tell them apart.

    At seven deviations two neighbouring 53-bit numbers lie 13,000 grid steps apart: the steps in
    between must come up, too, and evenly.
    """
    place = int(stats.norm.cdf(-7) * 2**53)

    class Tail(OperatingSystem):
        calls = 0

        def _words(self, n):
            self.calls += 1
            return np.full(n, place, np.uint64) if self.calls % 2 else super()._words(n)

    steps = np.rint(Tail().normals(20_000) * 2.0**GRID_BITS)
    edges = stats.norm.ppf(np.array([place, place + 1]) * 2.0**-53) * 2.0**GRID_BITS
    assert edges[1] - edges[0] > 10_000
    assert len(np.unique(steps)) > 8_000
    assert stats.kstest(steps, "uniform", (edges[0], edges[1] - edges[0])).pvalue > 1e-9


class Scripted(OperatingSystem):
    """The system's source with words that repeat."""

    def __init__(self, seed: int = 0) -> None:
        self.chance = np.random.default_rng(seed)

    def words(self, n: int) -> np.ndarray:
        return self.chance.integers(0, 2**64, n, dtype=np.uint64)


def test_normals_are_as_near_to_exact_ones_as_rounding_takes_them_to_be():
    from mpmath import erfinv, mp

    chance = np.random.default_rng(0)
    places = np.concatenate([chance.uniform(0, 0.5, 150), 10.0 ** -chance.uniform(1, 30, 150)])
    with mp.workprec(200):
        exact = [mp.sqrt(2) * erfinv(2 * mp.mpf(p) - 1) for p in places]
        for x, computed in zip(exact, noise_module.ndtri(places)):
            assert abs(x - mp.mpf(computed)) <= noise_module._ERROR / 8 * (1 + abs(x))


def test_rounded_normals_are_those_of_exact_numbers(monkeypatch):
    """All decided by many digits, or only those near the middle of two points: the same."""
    quick = [Scripted(seed).rounded_normals(60, 2.0**30.7) for seed in range(3)]
    monkeypatch.setattr(noise_module, "_ERROR", 1.0)
    assert all(
        np.array_equal(Scripted(seed).rounded_normals(60, 2.0**30.7), quick[seed])
        for seed in range(3)
    )
    plain = np.rint(Scripted(0).normals(60) * 2.0**30.7)
    assert np.abs(plain - quick[0]).max() <= 1


def test_a_number_near_the_middle_is_decided_by_its_own_digits(monkeypatch):
    asked = []
    below = noise_module._below
    monkeypatch.setattr(noise_module, "_below", lambda *a: asked.append(a) or below(*a))
    Scripted(1).rounded_normals(300_000, 2.0**30.9)
    assert 0 < len(asked) < 100
    for place, finer, low, edge, deviation in asked[:20]:
        number = noise_module.ndtri((place + finer * 2.0**-53) * 2.0**-53) * (1 if low else -1)
        assert abs(number * deviation - edge) < 1e-3


def test_rounded_normals_have_the_variance_of_their_law():
    for random in (Scripted(5), Simulated(5, "noise", 1)):
        drawn = random.rounded_normals(200_000, 3.0)
        assert np.array_equal(drawn, np.rint(drawn))
        assert abs(drawn.var() / (9 + 1 / 12) - 1) < 6.2 * math.sqrt(2 / len(drawn))


def test_a_child_by_fork_does_not_draw_what_its_parent_draws(monkeypatch):
    """The difference of two releases with the same noise would hold none."""
    parent = OperatingSystem()
    child = copy.copy(parent)
    monkeypatch.setattr("os.getpid", lambda: -1)
    child.words(1)
    assert child._stream is not parent._stream
