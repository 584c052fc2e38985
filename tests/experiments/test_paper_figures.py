"""The papers' privacy figures, both ways."""

import math

import numpy as np
import pytest

from cupola.errors import PlanError
from cupola.privacy.accounting import epsilon
from cupola.privacy.events import Gaussian, SampledGaussian
from cupola.privacy.matrix import find
from cupola.privacy.published import figures, papers
from reproduce.paper_figures import Objective, Output, recomputed, tree_epsilon


def rounded(values, digits=2):
    return [round(value, digits) for value in values]


def test_reprogrammable_published_and_rigorous():
    found = recomputed("000")
    assert rounded(one.published for one in found) == [one.printed for one in found]
    assert [one.printed for one in found] == [1.04, 5.29, 1.96]
    assert rounded(one.rigorous for one in found) == [0.86, 12.92, 3.73]
    assert rounded(one.rdp for one in found) == [1.21, 14.32, 4.24]


def test_reprogrammable_with_two_blocks_clipped_apart():
    # As Algorithm 1 writes it: the sensitivity of both blocks together is sqrt(2) * clip.
    noise = 1.1 / math.sqrt(2)
    events = [[SampledGaussian(768 / n, noise, 100)] for n in (50_000, 3_680, 11_959)]
    assert rounded((epsilon(one, 1e-5) for one in events), 1) == [2.3, 24.1, 7.7]
    by_rdp = [epsilon(one, 1e-5, method="rdp") for one in events]
    assert rounded(by_rdp, 1) == [3.0, 26.8, 8.8]


def test_dp_ftrl_epsilons_of_table_5():
    found = recomputed("001")
    assert [one.printed for one in found] == [18.71, 7.83, 4.19, 2.60, 1.77]
    assert rounded(one.published for one in found) == [one.printed for one in found]
    assert all(one.rigorous < one.published for one in found)


def test_dp_ftrl_needs_eleven_nodes_and_one_participation():
    assert find("tree").sensitivity(1600) == pytest.approx(math.sqrt(11))
    twice = Gaussian(2.33 / find("tree").sensitivity(1600, 2, 100))
    assert epsilon([twice], 1e-6) > 1.5 * tree_epsilon(2.33, 1600, 1e-6)


def output(**changes):
    settings = {"releases": 40, "clip": 1.0, "noise": 0.5, "samples": 224, "delta": 1e-3}
    return Output(**{**settings, **changes})


def test_upcycled_output_formula_and_its_own_proof():
    one = output(noise=0.05)
    moment = 40 * 1.0 / (2 * 0.05**2 * 224**2)
    assert one.as_printed() == pytest.approx(2 * math.sqrt(moment * math.log(1000) + moment))
    # The proof minimises moment * (l + 1) + log(1/delta) / l over l.
    orders = np.linspace(1e-3, 200, 400_000)
    least = np.min(moment * (orders + 1) + math.log(1000) / orders)
    assert one.bracketed() == pytest.approx(least, rel=1e-6)
    # delta at the bracketed epsilon, by the theorem's other formula, is the delta we started with.
    ratio = one.bracketed() / (2 * moment) - 0.5
    assert math.exp(-moment * ratio**2) == pytest.approx(1e-3, rel=1e-9)
    assert output(noise=0.005).as_printed() < output(noise=0.005).bracketed()


def test_upcycled_output_rigorous_sensitivity():
    assert output().sensitivity() == 2.0
    convex = output(lipschitz=1.0, strength=0.1)
    assert convex.sensitivity() == pytest.approx(2 / 22.4)
    assert output(lipschitz=50.0, strength=0.1).sensitivity() == 2.0
    exact = epsilon([Gaussian(0.5 / (2 / 22.4), 40)], 1e-3)
    assert convex.rigorous() == pytest.approx(exact)
    assert convex.rigorous() > 3 * convex.bracketed()
    # A clipped minimiser can turn around with one record, whatever the number of records.
    assert output().rigorous() > 100 * output().as_printed()


def test_upcycled_objective():
    one = Objective(releases=40, alpha=1.0, samples=224, strength=0.1)
    printed = 41 * (2 * 1.0 * 0.1 + 2.8 * 0.25) / (224 * 0.1)
    assert one.as_printed() == pytest.approx(printed)
    assert one.holds()
    assert not Objective(40, 1.0, 2, 0.1).holds()
    assert one.rigorous() == pytest.approx(40 * (2 / 224 + math.log1p(0.25 / 22.4)))
    ten = Objective(40, 1.0, 224, 0.1, classes=10)
    assert ten.rigorous() == pytest.approx(10 * one.rigorous())


def test_objective_jacobian_bound_holds_for_random_replacements():
    # det(H0 + a xx') / det(H0 + b yy') <= 1 + curvature / (n strength), for any records x and y.
    rng = np.random.default_rng(1)
    n, strength, curvature = 5, 0.1, 0.25
    bound = 1 + curvature / (n * strength)
    largest = 0.0
    for _ in range(500):
        x = rng.normal(size=(n + 1, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        second = rng.uniform(0, curvature, size=n + 1)
        second[0] = curvature
        second[1] = 0 if rng.random() < 0.5 else second[1]
        parts = second[:, None, None] * x[:, :, None] * x[:, None, :] / n
        rest = parts[2:].sum(axis=0) * (rng.random() < 0.7) + strength * np.eye(3)
        ratio = np.linalg.det(rest + parts[0]) / np.linalg.det(rest + parts[1])
        largest = max(largest, ratio)
    assert 0.9 * bound < largest <= bound * (1 + 1e-12)


def test_upcycled_figures_say_what_is_wrong():
    general, convex, two, ten = recomputed("003")
    assert round(general.published, 6) == round(convex.published, 6) == 1.0
    assert general.rigorous > convex.rigorous > 10
    assert two.rigorous < two.published < ten.rigorous
    assert "2 clip" in str(general)


def test_cup_noises():
    found = recomputed("004")
    assert rounded(one.published for one in found) == [4.19, 5.67]
    assert rounded(one.rdp for one in found) == [4.62, 6.27]
    for one, rate, steps, target in zip(found, (0.4096, 0.6144), (300, 200), (8, 7)):
        spent = epsilon([SampledGaussian(rate, one.rigorous, steps)], 1e-5)
        assert spent == pytest.approx(target, rel=1e-3)
        assert one.rigorous < one.rdp


@pytest.mark.parametrize("paper", papers())
def test_what_is_stated_is_what_is_recomputed(paper):
    stated, found = figures(paper), recomputed(paper)
    assert len(stated) == len(found)
    for one, other in zip(stated, found):
        for name, value in vars(one).items():
            expected = getattr(other, name)
            exact = not isinstance(value, float)
            assert value == (expected if exact else pytest.approx(expected, abs=2e-5)), name
        assert str(one) == str(other)


def test_every_figure_gives_a_reason():
    assert papers() == ("000", "001", "003", "004")
    for paper in ("000", "001", "003"):
        for one in figures(paper):
            assert one.reason.endswith(".")
            assert paper in str(one)
    with pytest.raises(PlanError, match="999"):
        figures("999")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: output(clip=0), "clip"),
        (lambda: output(noise=-1), "noise"),
        (lambda: output(delta=1), "delta"),
        (lambda: output(releases=0), "releases"),
        (lambda: Objective(1, 0, 10, 0.1), "alpha"),
        (lambda: Objective(1, 1, 10, 0), "strength"),
    ],
)
def test_bad_input_is_named(make, field):
    with pytest.raises(PlanError, match=field):
        make()
