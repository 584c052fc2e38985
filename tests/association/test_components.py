"""Principal components by sums, beside the exact decomposition of the pooled people."""

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study
from replayed import bare, lying_otherwise, record, repeat, saved_and_loaded

from cupola.association.component_choices import Components

N, M = 150, 120
LOW = {"people": 1, "directions": 100, "carriers": 0}
SMALL = {"count": 3, "block": 4, "sums": 12, "maf": 0.01, "residual": 1e-6}


def drawn(seed=5, n=N, m=M, groups=3, missing=0.05):
    """People of several populations."""
    data = people(seed, n=n, m=m, missing=missing, chromosomes=(1, 2, 23))
    rng = np.random.default_rng(seed)
    frequency = np.clip(
        rng.uniform(0.2, 0.8, m)[:, None] + rng.normal(0, 0.2, (m, groups)), 0.05, 0.95
    )
    of = rng.integers(0, groups, n)
    copies = rng.binomial(2, frequency[:, of])
    single = (data.variants.chromosome == 23)[:, None] & (data.sex == 1)[None] & (copies == 1)
    data.copies = np.where(data.copies == 3, 3, np.where(single, 2, copies))
    return data


def exact(data, count, maf=0.01):
    """Eigenvalues of ZZ'/M and the people's components, by numpy."""
    x = data.copies[data.variants.chromosome <= 22].astype(float)
    x[x == 3] = np.nan
    p = np.nanmean(x, axis=1) / 2
    x, p = x[np.minimum(p, 1 - p) >= maf], p[np.minimum(p, 1 - p) >= maf]
    z = np.nan_to_num((x - 2 * p[:, None]) / np.sqrt(2 * p * (1 - p))[:, None])
    values, vectors = np.linalg.eigh(z.T @ z / len(z))
    return values[::-1][:count], vectors[:, ::-1][:, :count]


def chosen(test=None, **options):
    asked = {**SMALL, **options.pop("components", {})}
    limits = {**LOW, **options.pop("limits", {})}
    return study(test, components=asked, limits=limits, **options)


def cohorts_of(folder, data, made, parts):
    return sites(made, cut(folder, data, parts))


def told(cohorts):
    return np.concatenate([own.scores for own in cohorts])


def run(folder, data, made, parts, **more):
    cohorts = cohorts_of(folder, data, made, parts)
    for own in cohorts:
        own.limits = made.limits
    _, state, _ = carry_out(made, cohorts, **more)
    return cohorts, state


def alike(a, b):
    """|r| of columns."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    return np.abs((a * b).sum(axis=0)) / np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))


THREE = np.split(np.arange(N), [40, 90])


@pytest.mark.parametrize("masked", [False, True])
def test_components_are_those_of_the_pooled_people(tmp_path, masked):
    data = drawn()
    cohorts, state = run(tmp_path, data, chosen(), THREE, masked=masked)
    values, vectors = exact(data, 3)
    known = state.values["components"]
    np.testing.assert_allclose(known["eigenvalues"], values, rtol=1e-9)
    ours = told(cohorts)
    assert alike(ours, vectors).min() > 1 - 1e-9
    np.testing.assert_allclose(np.abs(ours), np.abs(vectors), atol=1e-5)
    np.testing.assert_allclose(known["squares"], 1, atol=1e-9)
    assert known["determined"] == [True, True, False] or all(known["determined"])


def test_masked_sums_give_the_same(tmp_path):
    data = drawn()
    plain, masked = (run(tmp_path, data, chosen(), THREE, masked=m) for m in (False, True))
    np.testing.assert_allclose(told(masked[0]), told(plain[0]), atol=1e-9)
    a, b = (state.arrays["components/loadings"] for _, state in (plain, masked))
    np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("cuts", [[], [75], [10, 30, 60, 61, 100], [140]])
def test_how_people_are_cut_into_cohorts_does_not_matter(tmp_path, cuts):
    data, parts = drawn(), np.split(np.arange(N), cuts)[::-1]
    cohorts, _ = run(tmp_path, data, chosen(), parts)
    found = exact(data, 3)[1][np.concatenate(parts)]
    assert alike(told(cohorts), found).min() > 1 - 1e-9
