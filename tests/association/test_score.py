"""A score test first: its numbers are those of pooled people, and what goes on keeps its digits."""

import numpy as np
import pytest
from cohorts import cut, people, sites, study
from cohorts import found as found_by
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pooled_score import score_test
from scipy import stats

from cupola.association import Association, StudyHost, fit, results
from cupola.association.score_threshold import threshold, two_sided
from cupola.association.site import released_numbers
from cupola.engines import InProcess
from cupola.errors import PlanError

ALL = study("logistic", chunk=16)
FIRST = study("logistic", chunk=16, score={"below": 0.2})
NUMBERS = ("BETA", "SE", "STAT", "P")


def found(chosen, cohorts, masked=False):
    """Of all variants: the list is public."""
    data, bases = cohorts
    return found_by(chosen, bases, data.variants, masked)


def asked(chosen, cohorts):
    """The tasks of a study's questions, and its results."""
    data, bases = cohorts
    program, tasks = Association(chosen, len(bases), data.variants), []
    state = program.start()
    with InProcess(StudyHost(sites(chosen, bases)), workers=1, quorum=1.0) as reach:
        while (ask := program.ask(state)) is not None:
            tasks.append(ask.question.task)
            reply = None if ask.kind == "alone" else reach.sum(ask.question, ask.sites)
            state = program.answer(state, reply)
    return tasks, results(program, state)


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    data = people(5, n=240, m=80, chromosomes=(1, 23, 24, 26))
    data.copies[1] = 2 * (data.cc == 2)  # separated
    data.copies[2] = 0  # one allele
    data.copies[3, ::50] = 3
    parts = np.array_split(np.arange(240), 3)
    return data, cut(tmp_path_factory.mktemp("score"), data, parts)


@pytest.fixture(scope="module")
def first(cohorts):
    return found(FIRST, cohorts)


def _pooled(data, i):
    """Genotype, columns and trait of those tested at a variant."""
    kind, copies = data.variants.chromosome[i], data.copies[i].astype(float)
    g = np.where(copies == 3, np.nan, copies)
    male = data.sex == 1
    single = np.full(len(data), kind == 26) | ((kind in (23, 24)) & male)
    g = np.where(single, np.where(g == 1, np.nan, g) / 2, g)
    who = male if kind == 24 else np.ones(len(data), bool)
    x = np.column_stack([np.ones(len(data)), data.age, data.dose])
    x = np.column_stack([x, male]) if kind == 23 else x
    return g[who], x[who], (data.cc == 2)[who].astype(float)


def test_the_score_test_is_that_of_the_pooled_people(cohorts, first):
    data, _ = cohorts
    scored, kinds = np.flatnonzero(first.status == fit.SCORE), set()
    for row in scored:
        i = int(np.flatnonzero(data.variants.position == first.variants.position[row])[0])
        beta, error = score_test(*_pooled(data, i))
        sign = 1 if first.variants.a1[row] == data.variants.a1[i] else -1
        columns = first.columns
        # What stands for a missing call has 32 bits.
        assert columns["BETA"][row] == pytest.approx(sign * beta, rel=1e-6, abs=1e-7)
        assert columns["SE"][row] == pytest.approx(error, rel=1e-7)
        assert columns["P"][row] == pytest.approx(2 * stats.norm.sf(abs(beta / error)), rel=1e-6)
        assert columns["NMISS"][row] == np.isfinite(_pooled(data, i)[0]).sum()
        kinds.add(int(data.variants.chromosome[i]))
    assert kinds == {1, 23, 24, 26}
    assert len(scored) > 30


def test_variants_that_go_on_have_the_digits_they_had(cohorts, first):
    full = found(ALL, cohorts)
    fitted = first.columns["METHOD"] == "WALD"
    assert 5 < fitted.sum() < 40
    for name in (*NUMBERS, "NMISS"):
        assert first.columns[name][fitted].tobytes() == full.columns[name][fitted].tobytes()
    below = full.columns["P"] < 0.1  # far from the threshold both tests agree on which they are
    assert (fitted | np.isnan(first.columns["P"]))[below].all()
    assert not (fitted & (full.columns["P"] > 0.3)).any()


def test_what_has_no_answer_has_none_in_the_score_test(cohorts, first):
    full = found(ALL, cohorts)
    alone = full.status == fit.MONOMORPHIC
    assert alone.any()
    assert (first.status[alone] == fit.MONOMORPHIC).all()
    assert not np.isfinite(first.columns["P"][alone]).any()


def test_a_separated_variant_goes_to_firth_if_asked(cohorts, first):
    at = int(np.flatnonzero(first.variants.position == cohorts[0].variants.position[1])[0])
    assert first.status[at] == fit.SEPARATED
    chosen = study("logistic", chunk=16, score={"below": 0.2}, newton={"firth": True})
    both = [found(s, cohorts) for s in (chosen, study("logistic", newton={"firth": True}))]
    assert both[0].columns["METHOD"][at] == "FIRTH"
    for name in NUMBERS:
        assert both[0].columns[name][at] == both[1].columns[name][at]


@pytest.mark.parametrize("score", [{"below": 0.2}, {"below": 0.4, "then": "saddle-point"}])
def test_masked_sums_give_what_plain_ones_do(cohorts, score):
    chosen = study("logistic", chunk=16, score=score)
    plain, masked = (found(chosen, cohorts, masked=m) for m in (False, True))
    assert (plain.status == masked.status).all()
    for name in NUMBERS:
        np.testing.assert_allclose(masked.columns[name], plain.columns[name], rtol=2e-5, atol=1e-6)


def test_few_are_gathered_in_one_question(cohorts):
    tasks, told = asked(FIRST, cohorts)
    kinds = 4
    assert tasks.count("gwas first") == kinds  # one for each, of 80 variants in chunks of 16
    assert tasks.count("gwas score") > kinds
    assert told.columns["METHOD"].tolist().count("WALD") > 5


def test_nothing_below_the_threshold_ends_the_study(cohorts):
    chosen = study("logistic", score={"below": 1e-100})
    tasks, told = asked(chosen, cohorts)
    assert "gwas first" not in tasks
    assert set(told.columns["METHOD"]) == {"SCORE", "NA"}


def test_covariates_have_coefficients_where_they_were_fitted(cohorts):
    chosen = study("logistic", chunk=16, score={"below": 0.2}, covariate_rows=True)
    told = found(chosen, cohorts)
    age = told.covariates[0].beta
    assert np.isfinite(age[told.columns["METHOD"] == "WALD"]).all()
    assert np.isnan(age[told.columns["METHOD"] == "SCORE"]).all()


def test_all_go_on_by_default():
    assert ALL.parts == ("test",)
    assert not ALL.scored
    assert FIRST.parts == ("score", "test")


def test_a_score_test_counts_as_numbers_told():
    assert released_numbers(FIRST) == released_numbers(ALL) + 6  # columns with sex on X, and one


@pytest.mark.parametrize("test", ["linear", "chi-square"])
def test_other_tests_have_no_score_test(cohorts, test):
    chosen = study(test, score={"below": 0.01})
    with pytest.raises(PlanError, match=r"\[score\]"):
        found(chosen, cohorts)


# The threshold


@examples(max_examples=60, deadline=None)
@given(st.floats(0.0, 37.0))
def test_two_sided_p_is_the_normal_distribution_s(z):
    assert two_sided(z) == pytest.approx(2 * stats.norm.sf(z), rel=1e-10, abs=1e-15)


@examples(max_examples=40, deadline=None)
@given(st.floats(-300.0, -1e-6).map(lambda x: 10**x))
def test_the_threshold_belongs_to_p(p):
    assert threshold(p) == pytest.approx(stats.norm.isf(p / 2), rel=1e-9, abs=1e-10)


def test_all_are_beyond_the_threshold_of_one():
    assert threshold(1.0) == 0.0
