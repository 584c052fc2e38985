"""Noise in shares: the law of its sum by brute force, sensitivity, encoding, and what it costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from cupola.errors import PlanError
from cupola.privacy.accounting import calibrate, delta, epsilon, steps_within, within
from cupola.privacy.discrete import exact_sigma
from cupola.privacy.distributed import (
    ARITHMETIC,
    GAP,
    LOST,
    Shares,
    event,
    gap,
    rho,
)
from cupola.privacy.events import (
    Approximate,
    Concentrated,
    Event,
    Gaussian,
    Pure,
    SampledGaussian,
    Unprotected,
    merge,
)
from cupola.privacy.noise import OperatingSystem, Simulated
from cupola.secure.encoding import decode, encode, entry

ORDERS = (1.01, 1.5, 2.0, 5.0, 16.0)


# The sum of discrete Gaussians, exactly


def log_law(sigma: float, shares: int, reach: int) -> np.ndarray:
    """log P(S = z) for z from -reach to reach, S the sum of so many discrete Gaussians."""
    x = np.arange(-reach, reach + 1)
    one = -(x**2) / (2 * sigma**2)
    one -= logsumexp(one)
    total = one
    for _ in range(shares - 1):
        padded = np.pad(total, reach, constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
        total = logsumexp(windows + one[::-1], axis=1)
    return total


def divergence(law: np.ndarray, shift: int, order: float) -> float:
    """Renyi, between a law and itself moved by `shift`; the ends of the law are negligible."""
    p, q = law[shift:], law[: len(law) - shift]
    return float(logsumexp(order * p + (1 - order) * q)) / (order - 1)


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.8, 1.0, 1.5])
@pytest.mark.parametrize("shares", [2, 3, 5])
def test_the_gap_is_what_the_sum_really_differs_by(sigma, shares):
    reach = 30
    z = np.arange(-reach, reach + 1)
    ratio = log_law(sigma, shares, 60)[30:91] + z**2 / (2 * shares * sigma**2)
    spread = float(ratio.max() - ratio.min())
    s = sigma**2 * np.arange(1, shares) / np.arange(2, shares + 1)
    q = sum(np.exp(-2 * math.pi**2 * s * j**2) for j in range(1, 20))
    proven = float(np.log((1 + 2 * q) / (1 - 2 * q)).sum())
    assert spread <= proven + 1e-12
    assert proven <= gap(sigma, shares) / 2
    if sigma < 1 and shares == 2:
        assert spread > proven / 3  # the bound is not idle


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("shares", [1, 2, 4])
def test_no_divergence_of_a_sum_exceeds_the_bound(sigma, shares):
    law = log_law(sigma, shares, 120)
    for shift in (1, 2, 3):
        for order in ORDERS:
            found = divergence(law, shift, order)
            assert found <= order * rho(shift, sigma, shares, 0) + gap(sigma, shares) + 1e-12
            assert found <= order * rho(shift, sigma, shares, 1) + 1e-12
    if sigma >= 1:  # and it is hardly less: nothing is given away
        assert divergence(law, 2, 2.0) > 0.98 * 2 * rho(2, sigma, shares, 0)


def test_the_gap_is_needed():
    """A sum of small shares leaks more than one discrete Gaussian of the same variance."""
    sigma, shares = 0.5, 2
    worst = max(
        divergence(log_law(sigma, shares, 120), shift, order) - order * rho(shift, sigma, shares, 0)
        for shift in (1, 2, 3)
        for order in ORDERS
    )
    assert 0 < worst <= gap(sigma, shares) / 2


def test_the_published_bound_for_two_places():
    """Half epsilon^2 with epsilon the less of the two published forms also holds here."""
    sigma, shares, places = 0.6, 3, 2
    law = log_law(sigma, shares, 120)
    tau = gap(sigma, shares)
    for a in ((1, 0), (1, 1), (2, 1)):
        norm = math.hypot(*a) / (math.sqrt(shares) * sigma)
        for order in ORDERS:
            found = sum(divergence(law, shift, order) for shift in a if shift)
            assert found <= order * norm**2 / 2 + tau * places
            assert found <= order / 2 * (norm + math.sqrt(places) * tau) ** 2


def test_gaps_of_shares_that_are_used_vanish():
    assert gap(4.0, 2) == pytest.approx(10 * math.exp(-16 * math.pi**2))
    assert gap(4.0, 10**9) * 1e12 < GAP
    assert gap(1.0, 3) == pytest.approx(
        10 * (math.exp(-(math.pi**2)) + math.exp(-(math.pi**2) * 4 / 3))
    )
    assert gap(1.0, 1) == 0
    assert gap(1.0, 2**21) >= gap(1.0, 2**20 - 1)


# A total of the mechanism as it is used


def small(**changes) -> Shares:
    given = {"clip": 1.0, "noise": 0.8, "sites": 4, "minimum": 3, "colluders": 1, "dimension": 1}
    return Shares(**{**given, "bits": 16, **changes})


def test_a_total_keeps_its_promise_exactly():
    """d = 1: the law of two honest shares, with the site's update and zeroed out."""
    shares = small(noise=1.0, sites=200)
    sigma = float(exact_sigma(shares.steps))
    assert 4 <= sigma < 40
    law = log_law(sigma, shares.honest, math.ceil(20 * sigma))
    # The longest updates there are; they are clipped.
    rounded = shares._rounded(np.array([123.0]))
    assert rounded[0] == math.floor(shares.clip / shares.grid)
    for times, replaced in ((1, "add-remove"), (2, "replace-one")):
        allowed = event(shares.noise)
        for order in (1.5, 2.0):
            found = divergence(law, times * int(rounded[0]), order)
            assert found <= order * allowed.rho * times**2
            assert found > 0.99 * order * allowed.rho * times**2, replaced


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e200]),
    st.sampled_from([0.01, 1.0, 7.3]),
    st.integers(1, 300),
    st.sampled_from([16, 32, 64]),
)
def test_no_rounded_update_is_longer_than_the_clip(seed, scale, clip, dimension, bits):
    shares = small(clip=clip, dimension=dimension, bits=bits)
    random = np.random.default_rng(seed)
    update = scale * random.standard_normal(dimension) * random.integers(0, 2, dimension)
    rounded = shares._rounded(update)
    assert math.isqrt(sum(int(v) ** 2 for v in rounded)) * shares.grid <= shares.sensitivity
    with np.errstate(over="ignore"):
        norm = np.linalg.norm(update)
    exact = update * min(1.0, clip / norm) if norm > 0 else update
    assert np.abs(rounded * shares.grid - exact).max() <= shares.grid * (1 + 1e-9)
    assert (np.abs(rounded * shares.grid) <= np.abs(exact) * (1 + 1e-9)).all()


@given(
    st.floats(1e-3, 1e3),
    st.floats(0.05, 50),
    st.integers(3, 2000),
    st.integers(1, 10**9),
    st.sampled_from([32, 64]),
    st.data(),
)
def test_the_grid_fits_every_total_and_is_nearly_the_finest(
    clip, noise, sites, dimension, bits, data
):
    minimum = data.draw(st.integers(3, sites))
    colluders = data.draw(st.integers(0, minimum - 1))
    shares = Shares(clip, noise, sites, minimum, colluders, dimension, bits)
    assert shares.sites * (shares.limit + 1) < 2 ** (bits - 1)
    assert shares.steps >= 4
    assert shares.bound >= shares.sensitivity + shares.tail
    assert shares.rho <= event(noise).rho
    if bits == 32 and shares.steps < 2**26:
        assert shares.sites * shares.limit > 2**29
    # What the masked sum makes of the bound is at least as fine, so that encoding is exact.
    for asked in (minimum, sites):
        place = entry("model/w", (2,), "float", shares.bound, asked, bits)
        assert place.fraction >= shares.fraction
        ends = np.array([-shares.bound, shares.bound - shares.grid])
        whole = encode(place, ends, 1.0)
        assert np.array_equal(decode(place, whole), ends)


def test_answers_are_multiples_of_the_grid_within_the_bound():
    shares = Shares(0.5, 1.5, 20, 10, 2, 50_000)
    update = np.random.default_rng(1).standard_normal(50_000) / 100
    answer = shares.noised(update, Simulated(1, "shares", 1))
    steps = answer / shares.grid
    assert answer.dtype == np.float64
    assert np.array_equal(steps, np.rint(steps))
    assert np.abs(answer).max() <= shares.bound
    exact = update * 0.5 / np.linalg.norm(update)
    spread = (answer - exact).std()
    assert spread == pytest.approx(shares.deviation, rel=0.03)
    assert shares.deviation == pytest.approx(1.5 * 0.5 / math.sqrt(8), rel=1e-5)


def test_the_sum_of_the_honest_has_the_noise_that_was_asked_for():
    shares = Shares(1.0, 2.0, 12, 9, 3, 20_000)
    total = sum(
        shares.noised(np.zeros(20_000), Simulated(1, "shares", 1, site)) for site in range(6)
    )
    assert total.std() == pytest.approx(2.0, rel=0.03)


def test_updates_that_are_not_finite_count_as_zero():
    shares = small(dimension=3)
    for bad in (math.nan, math.inf, -math.inf):
        update = np.array([1.0, bad, 0.5])
        assert not shares._rounded(update).any()
    answer = shares.noised(np.array([math.nan, 0, 0]), Simulated(1, "shares", 1))
    assert np.array_equal(answer, shares.noised(np.zeros(3), Simulated(1, "shares", 1)))
    assert not shares._rounded(np.full(3, 1e300)).any()  # squares overflow


def test_numbers_beyond_the_bound_are_cut_off():
    shares = small(noise=0.5, dimension=2)
    object.__setattr__(shares, "tail", -0.5 * shares.clip)  # pretend that noise may not be there
    shares.__dict__.pop("fraction", None)
    answer = shares.noised(np.array([10.0, -10.0]), Simulated(3, "shares", 1))
    assert np.abs(answer).max() <= shares.bound < 0.51


def test_the_tail_is_as_unlikely_as_stated():
    shares = Shares(1.0, 1.0, 10, 5, 0, 1000)
    beyond = shares.tail / (float(exact_sigma(shares.steps)) * shares.grid)
    chance = 2 * 1000 * 10 * math.exp(-(beyond**2) / 2)
    assert chance <= 2.0**-200
    assert (1 + math.exp(69)) * 2.0**-200 <= LOST


def test_shares_come_from_the_system_where_there_is_no_seed():
    shares = small(dimension=100)
    one, other = (shares.noised(np.zeros(100), OperatingSystem()) for _ in range(2))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colluders": 3}, "privacy.colluders"),
        ({"colluders": -1}, "privacy.colluders"),
        ({"minimum": 5}, "sum.minimum"),
        ({"noise": 1e-4}, "raise the noise multiplier or sum.bits"),
        ({"sites": 2**30}, "do not fit into 16 bits"),
    ],
)
def test_impossible_shares_are_refused(changes, words):
    with pytest.raises(PlanError, match=words):
        small(**changes)


def test_no_noise_is_possible_and_promises_nothing():
    shares = small(noise=0.0, dimension=4)
    assert shares.rho == math.inf
    assert isinstance(event(0.0), Unprotected)
    update = np.array([0.3, -0.2, 0.0, 0.1])
    assert np.abs(shares.noised(update, Simulated(1, "s", 1)) - update).max() <= shares.grid
    assert "no noise" in str(shares)


def test_shares_say_what_they_are():
    words = str(replace(small(bits=32), sites=100, minimum=50, colluders=5))
    assert "45 of at least 50 shares" in words
    assert "5 may be known" in words
    assert ARITHMETIC < 1e-5


# What it costs


def test_concentrated_events_survive_a_ledger_and_are_counted_together():
    one = Concentrated(0.125, 1e-20, 3, "replace-one")
    assert Event.from_dict(one.as_dict()) == one
    assert merge([Concentrated(0.1), Concentrated(0.2), Concentrated(0.1, count=4)]) == (
        Concentrated(0.1, count=5),
        Concentrated(0.2),
    )
    assert Concentrated(0.1, count=2).times(3).count == 6
    for bad in ({"rho": -1}, {"rho": math.nan}, {"rho": 1, "delta": 1.0}, {"rho": 1, "count": -1}):
        with pytest.raises(PlanError):
            Concentrated(**bad)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_zcdp_counts_as_the_divergences_of_a_gaussian(neighbours):
    for noise, count in ((0.7, 1), (2.0, 30), (20.0, 1000)):
        ours = epsilon([event(noise).times(count)], 1e-5, neighbours=neighbours)
        plain = epsilon([Gaussian(noise, count)], 1e-5, neighbours=neighbours, method="rdp")
        tight = epsilon([Gaussian(noise, count)], 1e-5, neighbours=neighbours)
        assert ours == pytest.approx(plain, rel=1e-9)
        assert tight < ours < 1.25 * tight


def test_a_known_value():
    # epsilon of rho-zCDP at delta is below rho + 2 sqrt(rho log(1/delta)) (Bun and Steinke 2016).
    found = epsilon([Concentrated(0.5)], 1e-6)
    assert 0.8 * (0.5 + 2 * math.sqrt(0.5 * math.log(1e6))) < found
    assert found < 0.5 + 2 * math.sqrt(0.5 * math.log(1e6))


def test_zcdp_composes_with_everything():
    parts = [
        Gaussian(5.0, 3),
        SampledGaussian(0.01, 1.1, 200),
        Pure(0.1, 2),
        Approximate(0.1, 1e-9),
        Concentrated(0.01, 1e-12, 4),
    ]
    whole = epsilon(parts, 1e-5)
    assert max(epsilon([part], 1e-5) for part in parts) < whole
    assert whole < sum(epsilon([part], 1e-6) for part in parts)
    assert delta(parts, whole) == pytest.approx(1e-5, rel=1e-6)
    assert within(parts, whole * 1.0001, 1e-5)
    assert not within(parts, whole * 0.999, 1e-5)
    assert epsilon(parts[:-1], 1e-5) < whole
    assert epsilon([*parts, Unprotected("x")], 1e-5) == math.inf
    assert epsilon(parts, 1e-5, method="pld") == math.inf  # it has no loss distribution


def test_the_lost_share_of_delta_is_taken_off():
    assert epsilon([Concentrated(0.1, 1e-6)], 1e-5) == epsilon([Concentrated(0.1)], 9e-6)
    assert epsilon([Concentrated(0.1, 1e-5)], 1e-5) == math.inf
    assert delta([Concentrated(0.1, 1e-6)], 2.0) == delta([Concentrated(0.1)], 2.0) + 1e-6


def test_replacements_count_fourfold_and_are_not_read_as_additions():
    assert epsilon([Concentrated(0.1)], 1e-5, neighbours="replace-one") == pytest.approx(
        epsilon([Concentrated(0.4)], 1e-5)
    )
    with pytest.raises(PlanError, match="replace-one"):
        epsilon([Concentrated(0.1, neighbours="replace-one")], 1e-5)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_noise_is_found_for_a_target(neighbours):
    def events_at(noise):
        return [event(noise).times(20)]

    noise = calibrate(events_at, 3.0, 1e-5, neighbours=neighbours)
    assert epsilon(events_at(noise), 1e-5, neighbours=neighbours) <= 3.0
    assert epsilon(events_at(noise / 1.002), 1e-5, neighbours=neighbours) > 3.0


def test_budgets_count_it():
    one = event(2.0)
    limit = epsilon([one.times(50)], 1e-5)
    allowed = [n for n in range(1, 60) if within([one.times(n)], limit * (1 + 1e-9), 1e-5)]
    assert allowed == list(range(1, 51))
    assert steps_within(0.01, 1.0, 4.0, 1e-5, spent=[one]) < steps_within(0.01, 1.0, 4.0, 1e-5)


def test_extremes_give_bounds():
    assert epsilon([Concentrated(0.0)], 1e-5) == 0
    assert epsilon([Concentrated(1e300)], 1e-5) == math.inf
    assert epsilon([Concentrated(1e6)], 1e-5) < math.inf
    assert epsilon([Concentrated(1e-12, 0.0, 10)], 1e-5) < 1e-3
