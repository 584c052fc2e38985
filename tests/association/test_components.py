"""Principal components by sums, beside the exact decomposition of the pooled people."""

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study
from replayed import bare, lying_otherwise, record, repeat, saved_and_loaded

from cupola.association import Association, results
from cupola.errors import FederationError

N, M = 150, 120
LOW = {"people": 1, "directions": 100, "carriers": 0}
SMALL = {"count": 3, "block": 4, "sums": 14, "maf": 0.01, "residual": 1e-6}


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


def told(cohorts):
    return np.concatenate([own.scores for own in cohorts])


def run(folder, data, made, parts, **more):
    cohorts = sites(made, cut(folder, data, parts))
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
    np.testing.assert_allclose(known["eigenvalues"], values, rtol=1e-7)
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


# As covariates


@pytest.mark.parametrize("test", ["linear", "logistic"])
@pytest.mark.parametrize("masked", [False, True])
def test_scores_as_covariates_are_as_if_they_stood_in_the_cov_files(tmp_path, test, masked):
    data = drawn()
    made = chosen(test, covariates=("AGE", "PC1-3"))
    assert made.columns == ["AGE", "PC1", "PC2", "PC3"]
    cohorts, state = run(tmp_path, data, made, THREE, masked=masked)
    ours = results(Association(made, 3), state)
    bases = cut(tmp_path, data, THREE)
    for own, base in zip(cohorts, bases):
        _add_columns(base.with_suffix(".cov"), own.tables["components.tsv"].decode())
    plain = study(test, covariates=("AGE", "PC1-3"))
    _, state, _ = carry_out(plain, sites(plain, bases))
    theirs = results(Association(plain, 3), state)
    for name in ("BETA", "SE", "P", "NMISS"):
        np.testing.assert_allclose(ours.columns[name], theirs.columns[name], rtol=1e-5, atol=1e-8)
    assert np.isfinite(ours.columns["P"]).mean() > 0.9


def _add_columns(cov, table):
    beside = {tuple(line.split()[:2]): line.split()[2:] for line in table.splitlines()}
    lines = [[line, *beside[tuple(line.split()[:2])]] for line in cov.read_text().splitlines()]
    cov.write_text("".join(" ".join(line) + "\n" for line in lines))


def test_a_column_that_is_made_twice_is_refused(tmp_path):
    made = chosen("linear", covariates=("AGE", "PC1-2"))
    bases = cut(tmp_path, drawn(), THREE)
    cov = bases[1].with_suffix(".cov")
    first, *rest = cov.read_text().splitlines()
    cov.write_text("\n".join([f"{first} PC2", *(f"{line} 1" for line in rest)]) + "\n")
    with pytest.raises(FederationError, match="cov-ambiguous"):
        carry_out(made, sites(made, bases))


# The same questions everywhere


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    made = chosen("linear", covariates=("AGE", "PC1-3"))
    folder = tmp_path_factory.mktemp("same")
    return made, *record(made, cut(folder, drawn(), THREE))


@pytest.mark.parametrize("between", [saved_and_loaded, lying_otherwise])
def test_whoever_repeats_the_steps_asks_the_same(recorded, between):
    made, asked, replies = recorded
    assert repeat(made, 3, replies, between=between) == asked
    assert repeat(made, 3, replies, changed=bare) == asked


def test_another_total_leads_to_other_directions(recorded):
    made, asked, replies = recorded
    first = next(r for r in replies if r is not None and "product" in getattr(r, "arrays", {}))
    before = first.arrays["product"][0, 0]
    first.arrays["product"][0, 0] = np.nextafter(before, np.inf)
    try:
        assert repeat(made, 3, replies) != asked
    finally:
        first.arrays["product"][0, 0] = before
