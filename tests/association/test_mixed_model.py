"""The mixed model by sums, against matrices of people by people and against BOLT-LMM."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study
from mixed_reference import genotypes, mixed

from cupola.association import results
from cupola.association.structure import conjugate_gradients
from cupola.association.structure.mixed_model import group_of
from cupola.errors import DataError

BOLT = shutil.which("bolt")
CHROMOSOMES = (1, 2, 3, 4, 7, 23, 24, 26)


def choose(**options):
    given = {"calibration": 6, "maf": 0.1, "heritability": 0.4, **options}
    trait = {"column": "QT", "kind": "quantitative"}
    return study("mixed", trait=trait, mixed=given, chunk=16, rare=0, limits={"people": 1})


@pytest.fixture(scope="module")
def made():
    """People with missing calls, traits, covariates; one of unknown sex; families."""
    data = people(5, n=360, m=150, missing=0.04, chromosomes=CHROMOSOMES)
    twins = np.arange(0, 120, 2)
    alike = data.copies[:, twins + 1].copy()
    half = np.random.default_rng(1).random(alike.shape) < 0.6
    alike[half] = data.copies[:, twins][half]
    data.copies[:, twins + 1] = alike
    data.qt[[4, 77, 200]] = np.nan
    data.age[[5, 300]] = np.nan
    data.sex[9] = 0
    return data


@pytest.fixture(scope="module")
def bases(made, tmp_path_factory):
    return cut(tmp_path_factory.mktemp("mixed"), made, np.array_split(np.arange(360), 3))


def solved(chosen, bases, data, **how):
    program, state, _ = carry_out(chosen, sites(chosen, bases), data.variants, **how)
    return results(program, state), state.values


def _close(found, expected, data, most):
    beta, error, count = expected
    sign = np.where(found.variants.a1 == data.variants.a1, 1, -1)
    scale = np.abs(error)
    assert np.abs((found.columns["BETA"] * sign - beta) / scale).max() < most
    assert np.abs(found.columns["SE"] / error - 1).max() < most
    assert (found.columns["NMISS"] == count).all()


@pytest.mark.parametrize("groups", [22, 5, 2])
def test_the_solution_is_that_of_whole_matrices(made, bases, groups):
    chosen = choose(groups=groups, tolerance=1e-11, sums=100)
    found, values = solved(chosen, bases, made)
    assert values["mixed"]["converged"]
    assert not found.status.any()
    assert {23, 24, 26} < set(found.variants.chromosome.tolist())
    _close(found, mixed(made, chosen.mixed, 0.4, exact=True), made, 1e-9)


def test_it_is_that_of_conjugate_gradients_over_people_in_one_place(made, bases):
    chosen = choose()
    found, values = solved(chosen, bases, made)
    assert 3 < values["mixed"]["sums"] < 30
    _close(found, mixed(made, chosen.mixed, 0.4, exact=False), made, 1e-9)


def test_cohorts_do_not_matter_nor_do_masks(made, bases, tmp_path):
    chosen = choose(maf=0.2)
    one = cut(tmp_path, made, [np.arange(360)])
    pooled, _ = solved(chosen, one, made)
    plain, _ = solved(chosen, bases, made)
    masked, _ = solved(chosen, bases, made, masked=True)
    for name in ("BETA", "SE", "STAT"):
        expected = pooled.columns[name]
        np.testing.assert_allclose(plain.columns[name], expected, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(masked.columns[name], expected, rtol=1e-8, atol=1e-9)


def test_every_variant_is_tested_and_counted_as_in_linear_regression(made, bases):
    chosen = choose(maf=0.45)  # few are markers
    found, values = solved(chosen, bases, made)
    linear = study("linear", trait={"column": "QT", "kind": "quantitative"}, rare=0)
    program, state, _ = carry_out(linear, sites(linear, bases), made.variants)
    expected = results(program, state)
    assert values["mixed"]["markers"] < 40
    assert (found.status == expected.status).all()
    assert (found.columns["NMISS"] == expected.columns["NMISS"]).all()
    assert np.corrcoef(found.columns["STAT"], expected.columns["STAT"])[0, 1] > 0.95


def test_one_allele_and_copies_of_covariates_have_no_result_as_in_linear_regression(made, tmp_path):
    data = replace(made, copies=made.copies.copy(), age=made.age.copy())
    data.copies[3] = 0
    data.age[:] = np.where(data.copies[8] == 3, 1.0, data.copies[8])
    bases = cut(tmp_path, data, np.array_split(np.arange(360), 3))
    statuses = []
    for chosen in (
        choose(),
        study("linear", trait={"column": "QT", "kind": "quantitative"}, rare=0),
    ):
        program, state, _ = carry_out(chosen, sites(chosen, bases), data.variants)
        statuses.append(results(program, state).status)
    assert (statuses[0] == statuses[1])[[i for i in range(len(statuses[0])) if i != 8]].all()
    assert statuses[0][3] != 0


def test_heritability_is_that_of_exact_traces(made, bases):
    """Of the relationship matrix itself; random signs miss it by their own error."""
    _, values = solved(choose(heritability=None, probes=200), bases, made)
    x, _, frequency = genotypes(made)
    told = ~np.isnan(made.qt) & ~np.isnan(made.age) & (made.sex > 0)
    minor = np.minimum(frequency, 1 - frequency)
    wide = x[(made.variants.chromosome <= 22) & (minor >= 0.1)][:, told].T
    wide = wide / np.sqrt((wide**2).mean(axis=0))
    z = np.column_stack([np.ones(told.sum()), made.age[told], made.dose[told]])
    outside = np.eye(len(z)) - z @ np.linalg.solve(z.T @ z, z.T)
    y = made.qt[told]
    k, y = outside @ wide @ wide.T @ outside / wide.shape[1], outside @ (y - y.mean()) / y.std()
    traces = [[np.trace(k @ k), np.trace(k)], [np.trace(k), len(z) - z.shape[1]]]
    g, e = np.linalg.solve(traces, [y @ k @ y, y @ y])
    assert values["mixed"]["estimated"] == pytest.approx(g / (g + e), abs=0.02)
    assert values["mixed"]["heritability"] == max(values["mixed"]["estimated"], 0.05)


def test_a_solution_that_has_not_converged_is_told(made, bases):
    _, values = solved(choose(sums=2), bases, made)
    assert values["mixed"]["sums"] == 2
    assert not values["mixed"]["converged"]
    assert "has not converged after 2 sums" in values["warnings"][-1]


def test_a_study_without_markers_is_refused(made, bases):
    with pytest.raises(DataError, match=r"needs markers: [01] variants .*mixed.maf"):
        solved(choose(maf=0.4999), bases, made)


def test_markers_of_one_chromosome_are_not_enough(tmp_path):
    data = people(6, n=120, m=30)
    bases = cut(tmp_path, data, [np.arange(60), np.arange(60, 120)])
    with pytest.raises(DataError, match="all markers are in one"):
        solved(choose(), bases, data)


def test_a_binary_trait_is_refused(made, bases):
    chosen = study("mixed", trait={"column": "CC"}, limits={"people": 1})
    with pytest.raises(DataError, match="test = 'mixed' needs a quantitative trait"):
        solved(chosen, bases, made)


def test_chromosomes_without_markers_leave_none_out():
    assert [group_of(c, 5, [1, 2]) for c in (1, 6, 3, 22, 23, 25, 0)] == [1, 1, -1, 2, -1, -1, -1]


def test_vectors_by_coefficients_are_those_of_people():
    """As exact as the vectors themselves, also when residuals are tiny."""
    rng = np.random.default_rng(4)
    n, m = 150, 260
    x, z = rng.normal(size=(n, m)), np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    x /= np.sqrt((x**2).mean(axis=0))
    y = x @ rng.normal(size=m) / 10 + rng.normal(size=n)
    group, left = np.arange(m) % 4, np.array([0, 1, 2, 3, -1, 2])
    inverse = np.linalg.inv(z.T @ z)
    projection = conjugate_gradients.Projection(inverse, x.T @ z, z.T @ y)
    systems = conjugate_gradients.Systems(0.6, group, np.ones(m, bool), left)
    a, s = np.zeros((m, 6)), np.array([1.0] * 5 + [0.0])
    a[30, 5] = 1
    outside = np.eye(n) - z @ inverse @ z.T
    work, weights = systems.start(a, s), systems.weights()
    b = outside @ (x @ a + y[:, None] * s)
    for _ in range(40):
        c = projection.coefficients(work["residual"], work["residual_y"])
        r = x @ work["residual"] + y[:, None] * work["residual_y"] + z @ c
        work = systems.step(work, x.T @ r, (r * r).sum(axis=0))
    c = projection.coefficients(work["solution"], work["solution_y"])
    u = x @ work["solution"] + y[:, None] * work["solution_y"] + z @ c
    for k in range(6):
        some = outside @ x
        v = 0.6 * (some * weights[:, k]) @ some.T + 0.4 * np.eye(n)
        exact = np.linalg.solve(v, b[:, k])
        assert np.abs(u[:, k] - exact).max() < 1e-11 * np.abs(exact).max()
        assert work["bu"][k] == pytest.approx(b[:, k] @ exact, rel=1e-12)


def _benchmarks():
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "gwas"))
    import families
    import mixed as benchmark

    return families, benchmark


@pytest.mark.slow
@pytest.mark.skipif(BOLT is None, reason="needs bolt (apt-get install bolt-lmm)")
def test_p_values_are_bolts_at_its_heritability(tmp_path):
    """A small study of heavy families; the large ones are benchmarks/gwas/mixed.py."""
    families, benchmark = _benchmarks()
    families.simulate(tmp_path, families.Draw(77, 120, 1.0), chromosomes=8)
    reference = benchmark.bolt(str(BOLT), tmp_path, list(benchmark.COVARIATES))
    ours = benchmark.ours(
        tmp_path, "given", "mixed", list(benchmark.COVARIATES), heritability=reference["h2"],
        sums=15, calibration=20,
    )  # fmt: skip
    found = benchmark.judged(tmp_path, ours, reference)
    assert found["r"] > 0.9999
    assert found["beta_over_bolts"] == pytest.approx(1, abs=0.03)


@pytest.mark.long
@pytest.mark.skipif(BOLT is None, reason="needs bolt (apt-get install bolt-lmm)")
@pytest.mark.parametrize("name", ["mild", "heavy", "12,000"])
def test_a_simulated_study_shows_what_it_should(tmp_path, name):
    """benchmarks/gwas/mixed.json holds what these printed."""
    families, benchmark = _benchmarks()
    families.simulate(tmp_path, families.DRAWS[name])
    found = benchmark.compare(tmp_path, str(BOLT))
    missed = [what for what, holds in found["holds"].items() if not holds]
    assert not missed, missed
