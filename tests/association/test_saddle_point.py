"""Saddle-point approximation by sums: a pooled one's p, calibrated where cases are few."""

from dataclasses import replace

import numpy as np
import pytest
from cohorts import cut, people, sites, study
from cohorts import found as found_by
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pooled_score import saddle_point, score_test
from scipy import stats

from cupola.association import Association, StudyHost, fit, kernels, reference
from cupola.association.bed import packed
from cupola.association.site import LARGEST, MOST_TILT
from cupola.engines import InProcess
from cupola.federation import Declined
from cupola.federation.site import find_task

ALL = study("logistic", chunk=16, score={"then": "saddle-point"})


def _unbalanced(seed, n, m, cases=0.03):
    """People of whom few are cases, with rare variants."""
    data, rng = people(seed, n=n, m=m), np.random.default_rng(seed)
    rate = 10 ** rng.uniform(-2.2, -0.5, m)
    data.copies[:] = rng.binomial(2, rate[:, None], (m, n))
    data.copies[rng.random((m, n)) < 0.01] = 3
    chance = cases * np.exp(0.3 * (data.dose / 2))
    data.cc = 1.0 + (rng.random(n) < chance / (1 + chance))
    data.copies[0, data.cc == 2] = np.maximum(data.copies[0, data.cc == 2] % 3, 1)  # a hit
    return data


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    data = _unbalanced(3, 900, 60)
    parts = np.array_split(np.arange(900), 3)
    return data, cut(tmp_path_factory.mktemp("saddle"), data, parts)


def _pooled(data, i):
    g = np.where(data.copies[i] == 3, np.nan, data.copies[i].astype(float))
    x = np.column_stack([np.ones(len(data)), data.age, data.dose])
    return g, x, (data.cc == 2).astype(float)


def test_p_is_that_of_the_pooled_people(cohorts):
    data, bases = cohorts
    told = found_by(ALL, bases, data.variants)
    done = np.flatnonzero(told.status == fit.SADDLE)
    assert len(done) > 45
    differing = 0
    for i in done:
        p = saddle_point(*_pooled(data, i))
        assert told.columns["P"][i] == pytest.approx(p, rel=2e-5)
        score = told.columns["BETA"][i]
        z = told.columns["STAT"][i]
        assert np.sign(score) == np.sign(z)
        assert 2 * stats.norm.sf(abs(z)) == pytest.approx(p, rel=2e-5)
        beta, error = score_test(*_pooled(data, i))
        normal = 2 * stats.norm.sf(abs(beta / error))
        differing += abs(np.log(p / normal)) > 0.2
    assert differing > 5  # where it matters
    assert told.columns["P"].min() < 1e-4


def test_above_the_threshold_the_score_test_stands(cohorts):
    data, bases = cohorts
    few = study("logistic", chunk=16, score={"below": 0.05, "then": "saddle-point"})
    every, some = (found_by(s, bases, data.variants).columns for s in (ALL, few))
    went = some["METHOD"] == "SPA"
    assert 0 < went.sum() < 30
    assert (every["P"][went] == some["P"][went]).all()
    assert ((some["P"] > 0.05) | went | np.isnan(some["P"])).all()


def test_masked_sums_have_the_same_p(cohorts):
    data, bases = cohorts
    plain, masked = (found_by(ALL, bases, data.variants, m) for m in (False, True))
    assert (plain.status == masked.status).all()
    np.testing.assert_allclose(masked.columns["P"], plain.columns["P"], rtol=1e-5)


def _null_p(tmp_path, then, seed=8, n=6000, m=12000):
    """P-values of variants without an effect: one in a hundred people is a case."""
    rng = np.random.default_rng(seed)
    data = people(seed, n=n, m=m, missing=0)
    data.copies[:] = rng.binomial(2, rng.uniform(0.005, 0.05, (m, 1)), (m, n))
    data.cc = np.where(np.arange(n) % 100 == 0, 2.0, 1.0)
    bases = cut(tmp_path, data, np.array_split(rng.permutation(n), 3))
    chosen = study("logistic", score={"below": 0.05, **then}, newton={"iterations": 12})
    found = found_by(chosen, bases, data.variants)
    return found.columns["P"], found.columns["METHOD"]


@pytest.mark.slow
def test_false_positives_are_as_many_as_there_should_be_with_one_percent_cases(tmp_path):
    p, method = _null_p(tmp_path, {"then": "saddle-point"})
    low, high = stats.binom.interval(0.999, len(p), 1e-3)
    assert low <= (p < 1e-3).sum() <= high
    (tmp_path / "score").mkdir()
    alone, _ = _null_p(tmp_path / "score", {"below": 1e-12})
    assert (alone < 1e-3).sum() > high  # the plain score test has too many
    assert (method == "SPA").mean() == pytest.approx(0.05, abs=0.02)


# At the cohort


@pytest.fixture
def standing(cohorts):
    """A study stopped at its first saddle-point question."""
    data, bases = cohorts
    own = sites(ALL, bases)
    program = Association(ALL, 3, data.variants)
    engine = InProcess(StudyHost(own), workers=1, quorum=1.0)
    state = program.start()
    with engine:
        while (ask := program.ask(state)).question.task != "gwas saddle":
            reply = None if ask.kind == "alone" else engine.sum(ask.question, ask.sites)
            state = program.answer(state, reply)
        yield engine, ask.question, own


def _told(engine, question, site=0):
    return find_task(question.task)(engine.context(site), question)


def _changed(question, **arrays):
    return replace(question, arrays={**question.arrays, **arrays})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("at", lambda a: a * np.float32(1e4)),
        ("at", lambda a: a * np.float32(np.nan)),
        ("at", lambda a: a[:, :1]),
        ("at", lambda a: np.concatenate([a, a])),
        ("tilt", lambda a: a * np.float32(1e4)),
        ("tilt", lambda a: a * np.float32(np.nan)),
        ("tilt", lambda a: a[:, 1:]),
        ("tilt", lambda a: a - np.float32(3)),
        ("beta", lambda a: a + 99),
    ],
)
def test_points_that_do_not_fit_or_pick_people(standing, name, change):
    engine, question, _ = standing
    assert _told(engine, question).arrays
    with pytest.raises(Declined, match="coefficients-refused"):
        _told(engine, _changed(question, **{name: change(question.arrays[name])}))


def test_another_model_without_a_genotype_is_refused(standing):
    engine, question, _ = standing
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _told(engine, _changed(question, beta=question.arrays["beta"] + 1e-9))


def test_weights_on_few_people_are_withheld_even_without_following(standing):
    """Where t and the tilt make nearly everybody a case, or nobody, but for one person."""
    engine, question, own = standing
    made = own[0].design(question)
    far = made.columns[np.argmax((made.columns**2).sum(axis=1)), 1:]
    k = len(question.arrays["at"])
    tilt = np.zeros((k, 4), np.float32)
    tilt[:, 1:3] = -3.9 * far / np.abs(far).sum()
    at = np.full((k, 2), 25, np.float32)
    told = _told(engine, _changed(question, tilt=tilt, at=at)).arrays
    assert told["withheld"].all()
    assert not any(told[name].any() for name in ("value", "slope", "curve"))
    assert not _told(engine, question).arrays["withheld"].any()


def test_a_variant_has_no_more_points_than_iterations(standing):
    engine, question, own = standing
    own[0].iterations = 3
    for step in range(3):
        _told(engine, replace(question, step=question.step + step))
    _told(engine, question)  # the same step again is no new question
    with pytest.raises(Declined, match="asked-too-often"):
        _told(engine, replace(question, step=question.step + 3))


def _facts(seed, variants, n, columns):
    rng = np.random.default_rng(seed)
    calls = rng.choice(4, (variants, n), p=[0.2, 0.1, 0.3, 0.4]).astype(np.uint8)
    rows = np.zeros((variants, -(-n // 32) * 8), np.uint8)
    short = packed(calls)
    rows[:, : short.shape[1]] = short
    x = np.column_stack([np.ones(n), rng.standard_t(2, (n, columns - 1))])
    x[:, 1:] = (x[:, 1:] - x[:, 1:].mean(axis=0)) / (x[:, 1:].std(axis=0) + 1e-9)
    chance, scale = rng.uniform(0.001, 0.999, n), rng.choice([0.5, 1.0], n)
    tilt = rng.normal(size=(variants, columns + 1))
    most = rng.uniform(0, MOST_TILT, (variants, 1))
    tilt[:, :-1] *= most / np.abs(tilt[:, :-1]).sum(axis=1, keepdims=True)
    tilt[:, -1] = rng.uniform(0, 2, variants)
    return rows, np.arange(n), scale, x, chance, tilt, rng.uniform(-30, 30, (variants, 2))


@examples(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(3, 77), st.integers(1, 5))
def test_the_kernel_equals_the_reference(seed, variants, n, columns):
    facts = _facts(seed, variants, n, columns)
    for ours, slow in zip(kernels.saddle_sums(*facts), reference.saddle_sums(*facts)):
        np.testing.assert_allclose(ours, slow, rtol=1e-10, atol=1e-9)


@examples(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 60), st.integers(1, 5))
def test_no_cohort_adds_more_than_its_bound(seed, n, columns):
    """The bounds of `Asker.saddle`, with N people of one cohort and no slack."""
    sums, _ = reference.saddle_sums(*_facts(seed, 4, n, columns))
    reach = 2 + MOST_TILT
    assert (np.abs(sums[:, 0]) <= LARGEST * reach * n).all()
    assert (np.abs(sums[:, 1]) <= reach * n).all()
    assert (np.abs(sums[:, 2]) <= reach**2 * n / 4).all()
