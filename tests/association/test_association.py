"""A study over cohorts finds what one over the pooled people finds, and what textbooks say."""

from dataclasses import replace
from fractions import Fraction
from math import factorial

import numpy as np
import pytest
from cohorts import carry_out, cut, found, people, sites, study, write, write_bim
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from loopback_ray import Loopback
from scipy import stats

from cupola.association import fit, hardy_weinberg, kernels, pvalues, results
from cupola.association.files import Variants
from cupola.engines import InProcess, RayCluster, ray_cluster
from cupola.errors import DataError, FederationError, PlanError

TESTS = ("chi-square", "linear", "logistic")


def _same(a, b, rtol=1e-7):
    assert a.variants.name.tolist() == b.variants.name.tolist()
    assert a.variants.a1.tolist() == b.variants.a1.tolist()
    for name, column in a.columns.items():
        np.testing.assert_allclose(column, b.columns[name], rtol=rtol, atol=1e-9, err_msg=name)


@examples(max_examples=8, deadline=None, derandomize=True)
@given(
    test=st.sampled_from(TESTS),
    seed=st.integers(0, 50),
    cohorts=st.integers(2, 4),
    missing=st.sampled_from([0.0, 0.1]),
    masked=st.booleans(),
)
def test_federated_equals_pooled_in_any_order(
    tmp_path_factory, test, seed, cohorts, missing, masked
):
    folder = tmp_path_factory.mktemp("study")
    data = people(seed, missing=missing, chromosomes=(1, 23, 26))
    data.age[:3] = np.nan
    data.cc[5], data.qt[5] = np.nan, np.nan
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(len(data)), cohorts)
    chosen = study(test, one_sided=True, chunk=8, trend=test == "chi-square")
    pooled = found(chosen, [write(folder, "all", data)], data.variants)
    bases = cut(folder, data, parts)
    ours = found(chosen, bases, data.variants, masked)
    # What people without a call take off goes with 32 bits.
    _same(ours, pooled, 1e-7 if test == "chi-square" else 2e-6)
    _same(found(chosen, bases[::-1], data.variants), pooled, 2e-6)


def _design(data, i, chosen):
    """X and y of one variant, by the book."""
    g = np.where(data.copies[i] == 3, np.nan, data.copies[i]).astype(float)
    x = np.column_stack([np.ones(len(data)), data.age, data.dose, g])
    y = data.qt if chosen == "linear" else data.cc - 1
    ok = ~np.isnan(x).any(axis=1) & ~np.isnan(y)
    return x[ok], y[ok]


def test_linear_regression_is_least_squares(tmp_path):
    data = people(3)
    ours = found(
        study("linear"), cut(tmp_path, data, np.array_split(np.arange(90), 3)), data.variants
    )
    for i in range(4):
        x, y = _design(data, i, "linear")
        inverse = np.linalg.inv(x.T @ x)
        beta = inverse @ x.T @ y
        noise = ((y - x @ beta) ** 2).sum() / (len(y) - 4)
        t = beta[3] / np.sqrt(noise * inverse[3, 3])
        sign = 1 if ours.variants.a1[i] == data.variants.a1[i] else -1
        assert ours.columns["BETA"][i] == pytest.approx(sign * beta[3], rel=1e-7)
        assert ours.columns["P"][i] == pytest.approx(2 * stats.t.sf(abs(t), len(y) - 4), rel=1e-6)
        assert ours.columns["NMISS"][i] == len(y)


def _newton(x, y, penalised=False):
    beta = np.zeros(x.shape[1])
    for _ in range(200):
        p = 1 / (1 + np.exp(-x @ beta))
        w = p * (1 - p)
        inverse = np.linalg.inv((x.T * w) @ x)
        score = y - p
        if penalised:
            score = score + w * np.einsum("ni,ij,nj->n", x, inverse, x) * (0.5 - p)
        beta = beta + inverse @ x.T @ score
    return beta, np.sqrt(np.diag(inverse))


def test_logistic_regression_is_maximum_likelihood(tmp_path):
    data = people(4)
    chosen = study("logistic", covariate_rows=True)
    ours = found(chosen, cut(tmp_path, data, np.array_split(np.arange(90), 3)), data.variants)
    for i in range(4):
        x, y = _design(data, i, "logistic")
        beta, error = _newton(x, y)
        sign = 1 if ours.variants.a1[i] == data.variants.a1[i] else -1
        assert ours.columns["BETA"][i] == pytest.approx(sign * beta[3], rel=1e-6)
        assert ours.columns["SE"][i] == pytest.approx(error[3], rel=1e-5)
        assert [c.name for c in ours.covariates if c.shown[i]] == ["AGE", "DOSE"]
        assert ours.covariates[0].beta[i] == pytest.approx(beta[1], rel=1e-6)


def test_variants_without_an_answer(tmp_path):
    data = people(5, m=4, missing=0)
    data.copies[1] = 0  # one allele
    data.copies[2] = 2 * (data.cc == 2)  # separates cases from controls
    data.dose = data.copies[3].astype(float) * 3 + 1  # a covariate that is a genotype
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    plain = found(study("logistic"), bases, data.variants)
    assert plain.status.tolist() == [fit.OK, fit.MONOMORPHIC, fit.SEPARATED, fit.COLLINEAR]
    assert np.isnan(plain.columns["P"]).tolist() == [False, True, True, True]
    linear = found(study("linear"), bases, data.variants)
    assert linear.status.tolist() == [fit.OK, fit.MONOMORPHIC, fit.OK, fit.COLLINEAR]
    firth = found(study("logistic", newton={"firth": True}), bases, data.variants)
    assert firth.status.tolist() == [fit.OK, fit.MONOMORPHIC, fit.FIRTH, fit.COLLINEAR]
    beta, error = _newton(*_design(data, 2, "logistic"), penalised=True)
    sign = 1 if firth.variants.a1[2] == data.variants.a1[2] else -1
    assert firth.columns["BETA"][2] == pytest.approx(sign * beta[3], rel=1e-4)
    assert firth.columns["SE"][2] == pytest.approx(error[3], rel=1e-3)
    chi = found(study("chi-square"), bases, data.variants)
    assert np.isnan(chi.columns["CHISQ"]).tolist() == [False, True, False, False]


def test_trend_and_chi_square_by_the_book(tmp_path):
    data = people(6, missing=0)
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 2))
    ours = found(study("chi-square", trend=True), bases, data.variants)
    case, g = data.cc == 2, data.copies[0]
    table = [[g[c].sum(), 2 * c.sum() - g[c].sum()] for c in (case, ~case)]
    expected = stats.chi2_contingency(table, correction=False)
    assert ours.columns["CHISQ"][0] == pytest.approx(expected.statistic)
    assert ours.columns["P"][0] == pytest.approx(expected.pvalue)
    trend = len(g) * np.corrcoef(g, case)[0, 1] ** 2
    assert ours.columns["T_CHISQ"][0] == pytest.approx(trend)


def test_swapped_and_flipped_alleles_are_put_right_others_left_out(tmp_path):
    data = people(7, m=8, missing=0)
    a1, a2 = np.array(list("AAAAACGA")), np.array(list("GGCCTGTG"))
    data.variants = replace(data.variants, a1=a1, a2=a2)
    parts = np.array_split(np.arange(90), 3)
    bases = cut(tmp_path, data, parts)
    expected = found(study("linear"), bases, data.variants)
    other = replace(data, copies=data.copies.copy())
    other.copies[[0, 3]] = np.array([2, 1, 0, 3])[other.copies[[0, 3]]]
    v = data.variants
    b1, b2 = np.array(v.a1), np.array(v.a2)
    b1[0], b2[0] = v.a2[0], v.a1[0]  # swapped
    b1[2], b2[2] = "T", "G"  # the other strand
    b1[3], b2[3] = "G", "T"  # both
    b2[6] = "C"  # a third allele
    position = v.position.copy()
    position[7] += 5
    other.variants = Variants(v.chromosome, position, v.name, b1, b2)
    bases[1] = write(tmp_path, "other", other, parts[1], order=[7, 3, 2, 1, 0, 4, 6])
    program, state, reach = carry_out(study("linear"), sites(study("linear"), bases), v)
    from cupola.association import results

    ours = results(program, state)
    assert ours.variants.name.tolist() == v.name[:5].tolist()
    np.testing.assert_allclose(ours.columns["BETA"], expected.columns["BETA"][:5], rtol=1e-9)
    facts = state.values["found"]
    assert (facts["swapped"], facts["flipped"], facts["absent"]) == (2, 2, 1)
    assert (facts["incompatible"], facts["moved"]) == (1, 1)
    assert facts["unknown_strand"] == 1
    assert "another genome build" in state.values["warnings"][0]
    # Cohorts may propose the list instead: what is rare in one is named by another.
    data.copies[1, parts[0]] = 0
    cut(tmp_path, data, parts[:1])
    _, state, reach = carry_out(study("linear"), sites(study("linear"), bases))
    assert state.values["proposed"] == [7, 3, 0]  # rare, with a third allele, elsewhere
    assert len(reach.ledger.up) == 3


def test_quality_filters_and_missing_people(tmp_path):
    data = people(8, n=120, m=6, missing=0)
    data.copies[0] = 0
    data.copies[0, :4] = 1  # rare
    data.copies[1, ::3] = 3  # missing
    data.copies[2] = np.tile([0, 2], 60)  # no heterozygotes
    data.copies[3:, 7] = 3  # a person with few calls
    quality = {"maf": 0.05, "missing": 0.1, "hardy_weinberg": 1e-6, "person_missing": 0.45}
    bases = cut(tmp_path, data, np.array_split(np.arange(120), 3))
    chosen = study("chi-square", quality=quality)
    _, state, _ = carry_out(chosen, sites(chosen, bases), data.variants)
    assert state.arrays["reason"].tolist() == [6, 7, 8, 0, 0, 0]
    assert state.values["people"]["loaded"] == 119


def test_sex_chromosomes_as_plink_has_them(tmp_path):
    data = people(9, m=12, missing=0.05, chromosomes=(23, 24, 26))
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 2))
    ours = found(study("linear"), bases, data.variants)
    male = data.sex == 1
    for i in (0, 11):
        chromosome = data.variants.chromosome[i]
        g = np.where(data.copies[i] == 3, np.nan, data.copies[i]).astype(float)
        g = np.where(male | (chromosome == 26), g / 2, g)
        columns = [np.ones(90), data.age, data.dose, *([male] if chromosome == 23 else []), g]
        x, ok = np.column_stack(columns), ~np.isnan(g)
        beta = np.linalg.lstsq(x[ok], data.qt[ok], rcond=None)[0][-1]
        sign = 1 if ours.variants.a1[i] == data.variants.a1[i] else -1
        assert ours.columns["BETA"][i] == pytest.approx(sign * beta, rel=1e-6)


def test_a_study_that_could_tell_genotypes_is_refused(tmp_path):
    data = people(10)
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    with pytest.raises(DataError, match=r"90 people have trait and covariates.*needs 100"):
        found(study("linear", people_per_column=20), bases, data.variants)


def test_traits_are_read_as_plink_reads_them(tmp_path):
    data = people(11)
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    with pytest.raises(DataError, match="needs a quantitative trait"):
        found(study("linear", trait={"column": "CC"}), bases, data.variants)
    with pytest.raises(DataError, match="needs a binary trait"):
        found(study("logistic", trait={"column": "QT"}), bases, data.variants)
    counted = {"column": "CC", "kind": "quantitative"}
    assert np.isfinite(found(study("linear", trait=counted), bases, data.variants).log10_p).all()
    chosen = study("logistic", trait={"column": "QT", "kind": "binary"})
    with pytest.raises(FederationError, match="trait-not-binary"):
        found(chosen, bases, data.variants)
    with pytest.raises(PlanError, match="chi-square takes no covariates"):
        found(study("chi-square", covariates=("AGE",)), bases, data.variants)


def test_a_cohort_whose_quantitative_trait_looks_binary(tmp_path):
    data = people(17)
    data.qt[:30] = np.tile([0.0, 1.0, 2.0], 10)  # 0 is a value here, not a missing trait
    pooled = found(study("linear"), [write(tmp_path, "all", data)], data.variants)
    assert pooled.columns["NMISS"].max() > 80
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    _same(found(study("linear"), bases, data.variants, masked=True), pooled, 2e-6)


@pytest.mark.parametrize("test", TESTS)
def test_without_numba_the_reference_does_the_work(tmp_path, test, monkeypatch):
    data = people(18)
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    chosen = study(test, quality={"person_missing": 0.5})
    fast = found(chosen, bases, data.variants)
    monkeypatch.setattr(kernels, "has_numba", lambda: False)
    _same(found(chosen, bases, data.variants), fast)


def test_no_common_variant(tmp_path):
    data, other = people(12), people(13)
    other.variants = replace(other.variants, position=other.variants.position + 7)
    bases = [write(tmp_path, "a", data), write(tmp_path, "b", other)]
    with pytest.raises(DataError, match="no variant is common to all cohorts"):
        found(study("linear"), bases, data.variants)


def test_people_in_two_cohorts_are_found(tmp_path):
    data = people(14)
    bases = cut(tmp_path, data, [np.arange(40), np.arange(37, 70), np.arange(70, 90)])
    chosen = study("chi-square", fingerprints=True, one_sided=True)
    _, state, _reach = carry_out(chosen, sites(chosen, bases), data.variants, masked=True)
    assert state.values["shared_people"] == [[0, 1, 3]]


def test_what_sites_say_is_in_the_ledger_and_never_a_value(tmp_path):
    data = people(15)
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    text = bases[1].with_suffix(".cov").read_text().splitlines()
    text[4] = text[4].rsplit(" ", 1)[0] + " secret"
    bases[1].with_suffix(".cov").write_text("\n".join(text) + "\n")
    chosen = study("linear")
    cohorts = sites(chosen, bases)
    with pytest.raises(FederationError) as raised:
        carry_out(chosen, cohorts, data.variants)
    assert "site 1: cov-not-a-number" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "line 5: DOSE = 'secret' is no number" in cohorts[1].log[0]


@pytest.mark.parametrize("z", [0.5, 5.0, 37.0, 100.0])
def test_tails_do_not_underflow(z):
    assert pvalues.log10_normal(np.array(z)) == pytest.approx(
        (stats.norm.logsf(z) + np.log(2)) / np.log(10), rel=1e-10
    )
    assert pvalues.log10_chi2(np.array(z**2)) == pytest.approx(
        float(pvalues.log10_normal(np.array(z)))
    )
    if z < 38:
        assert pvalues.normal(np.array(z)) > 0
        assert pvalues.student(np.array(z), np.array(4000.0)) == pytest.approx(
            2 * stats.t.sf(z, 4000), rel=1e-6
        )


def test_the_tail_of_student_goes_on_below_the_smallest_float():
    t, freedom = np.array([60.0, 61.0, 90.0, 200.0]), np.full(4, 1000.0)
    log = pvalues.log10_student(t, freedom)
    step = 1e-4
    slope = (pvalues.log10_student(t + step, freedom) - log) / step
    density = stats.t.logpdf(t, 1000)
    hazard = np.exp(density - (log * np.log(10) - np.log(2)))
    np.testing.assert_allclose(-slope * np.log(10), hazard, rtol=1e-3)
    assert log[-1] < -700


def test_hardy_weinberg_is_the_exact_test():
    def chance(two, one, none):
        n = two + one + none
        ways = factorial(n) // (factorial(two) * factorial(one) * factorial(none))
        return Fraction(2**one * ways)

    for two, one, none in ((3, 9, 20), (0, 21, 79), (10, 1, 89), (0, 0, 50), (25, 0, 25)):
        alleles, n = 2 * two + one, two + one + none
        all_ways = [
            chance((alleles - h) // 2, h, n - h - (alleles - h) // 2)
            for h in range(alleles % 2, min(alleles, 2 * n - alleles) + 1, 2)
        ]
        mine = chance(two, one, none)
        expected = sum(w for w in all_ways if w <= mine) / sum(all_ways)
        assert hardy_weinberg.exact(two, one, none) == pytest.approx(float(expected), rel=1e-9)


def test_a_list_of_variants_survives_its_bytes(tmp_path):
    from cupola.association import read_variants, variant_list_codec

    v = people(16, m=40, chromosomes=(1, 2, 23)).variants
    write_bim(tmp_path / "a.bim", v)
    back = variant_list_codec.unpack(variant_list_codec.pack(read_variants(tmp_path / "a.bim")))
    assert back.name.tolist() == v.name.tolist()
    assert back.position.tolist() == v.position.tolist()
    packed = variant_list_codec.pack(v).copy()
    with pytest.raises(FederationError):
        variant_list_codec.unpack(packed[:-1])
    packed[60] ^= 1
    with pytest.raises(FederationError):
        variant_list_codec.unpack(packed)


def test_over_workers_of_ray(tmp_path, monkeypatch):
    """Each cohort stays where it was first asked, since it remembers what it was asked."""
    monkeypatch.setattr(ray_cluster, "library", Loopback)
    data = people(3)
    bases = cut(tmp_path, data, np.array_split(np.arange(len(data)), 3))
    for chosen in (study("logistic", chunk=8), study("chi-square")):
        here, there = (
            carry_out(chosen, sites(chosen, bases), data.variants, engine=engine)
            for engine in (InProcess, RayCluster)
        )
        _same(results(*here[:2]), results(*there[:2]))
        assert here[2].ledger.export() == there[2].ledger.export()
