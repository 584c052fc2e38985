"""Whoever repeats a study's steps on the same totals asks the same questions, bit for bit."""

import functools
import operator
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cohorts import cut, people, study
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from replayed import bare, lying_otherwise, record, repeat, saved_and_loaded

from cupola.association import fit, portable_algebra, variant_list_codec

TESTS = {
    "chi-square": study("chi-square", quality={"hardy_weinberg": 0.05}, chunk=8),
    "linear": study("linear", chunk=8, quality={"hardy_weinberg": 0.01}),
    "logistic": study("logistic", chunk=8),
    "whole genome": study(
        "logistic",
        chunk=8,
        whole_genome={
            "block": 4,
            "folds": 3,
            "components_elsewhere": True,
            "people": 0,
            "own_people": 0,
            "carriers": 3,
            "people_per_marker": 0,
            "people_per_prediction": 0,
        },
    ),
    "firth": study("logistic", chunk=8, newton={"firth": True}),
    "mixed": study("mixed", chunk=8, mixed={"maf": 0.1, "calibration": 5}, limits={"people": 1}),
    "dosages": study("linear", chunk=8, dosages=True, quality={"info": 0.8, "maf": 0.2}),
    "dosages, firth": study("logistic", chunk=8, dosages=True, newton={"firth": True}),
    "score": study("logistic", chunk=8, score={"below": 0.3}),
    "saddle point": study("logistic", chunk=8, score={"below": 0.5, "then": "saddle-point"}),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """What was asked and answered in a small study of each kind, with a separated variant."""
    data = people(31, n=120, m=20, chromosomes=(1, 2, 23, 26))
    data.copies[1] = 2 * (data.cc == 2)
    bases = cut(tmp_path_factory.mktemp("same"), data, np.array_split(np.arange(120), 3))
    return {name: (chosen, *record(chosen, bases)) for name, chosen in TESTS.items()}


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("between", [saved_and_loaded, lying_otherwise])
def test_a_state_asks_the_same_however_it_was_kept(recorded, name, between):
    chosen, asked, replies = recorded[name]
    assert len(asked) > 5
    assert repeat(chosen, 3, replies, between=between) == asked


@pytest.mark.parametrize("name", TESTS)
def test_of_a_total_only_the_sums_count(recorded, name):
    chosen, asked, replies = recorded[name]
    assert repeat(chosen, 3, replies, changed=bare) == asked


def test_firth_is_on_the_path_that_is_compared(recorded):
    assert len(recorded["firth"][1]) > len(recorded["logistic"][1])


def test_another_total_leads_to_another_question(recorded):
    chosen, asked, replies = recorded["logistic"]
    moments = next(r for r in replies if r is not None and "sums" in getattr(r, "arrays", {}))
    moments.arrays["sums"][0] = np.nextafter(moments.arrays["sums"][0], np.inf)
    try:
        assert repeat(chosen, 3, replies) != asked
    finally:
        moments.arrays["sums"][0] = np.nextafter(moments.arrays["sums"][0], -np.inf)


def test_a_public_list_can_be_repeated_from_its_bytes(tmp_path):
    """Compression may give other bytes on another machine; the packed list is taken as it is."""
    data = people(32)
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    asked, replies = record(TESTS["linear"], bases, data.variants)
    packed = variant_list_codec.pack(data.variants, 64 * TESTS["linear"].chunk)
    assert repeat(TESTS["linear"], 3, replies, packed) == asked
    other = variant_list_codec.pack(data.variants, 8)
    assert repeat(TESTS["linear"], 3, record(TESTS["linear"], bases, other)[1], other) != asked


def _processors():
    """Environments in which numpy and BLAS believe to be on other processors."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    known = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    yield {"NPY_DISABLE_CPU_FEATURES": " ".join(known), "OPENBLAS_CORETYPE": "Nehalem"}
    yield {"NPY_DISABLE_CPU_FEATURES": " ".join(known[1:]), "OPENBLAS_CORETYPE": "Haswell"}


def test_bits_do_not_depend_on_the_processor(recorded, tmp_path):
    kept = [(chosen, 3, replies) for chosen, _, replies in recorded.values()]
    (tmp_path / "kept").write_bytes(pickle.dumps(kept))
    expected = [mark for _, asked, _ in recorded.values() for mark in asked]
    script = Path(__file__).with_name("replayed.py")
    command = [sys.executable, script, tmp_path / "kept"]
    started = [
        subprocess.Popen(command, env={**os.environ, **other}, stdout=subprocess.PIPE, text=True)
        for other in _processors()
    ]
    told = [process.communicate()[0].split() for process in started]
    assert told == [expected, expected]


# The arithmetic itself


def _slow_inverse(matrix):
    """Gauss and Jordan, one number after another."""
    p, a = len(matrix), [[float(v) for v in row] for row in matrix]
    for j in range(p):
        pivot, column = a[j][j], [a[i][j] for i in range(p)]
        if not pivot > 0:
            return np.full((p, p), np.nan)
        row = [v / pivot for v in a[j]]
        a = [[a[i][n] - column[i] * row[n] for n in range(p)] for i in range(p)]
        a[j] = row
        for i in range(p):
            a[i][j] = -column[i] / pivot
        a[j][j] = 1 / pivot
    return np.array(a)


def _matrices(seed, k, p):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(k, p + 30, p)) * 10.0 ** rng.integers(-3, 4, p)
    return np.matmul(x.transpose(0, 2, 1), x)


def _bits(array):
    return np.ascontiguousarray(array).tobytes()


@examples(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), p=st.integers(1, 30), k=st.integers(1, 80))
def test_inverses_are_lapacks_but_for_rounding(seed, p, k):
    many = _matrices(seed, k, p)
    width = np.sqrt(np.diagonal(many, axis1=1, axis2=2))
    scale = width[:, :, None] * width[:, None, :]  # entries are as large as their scale makes them
    ours, lapack = portable_algebra.inverse(many) * scale, np.linalg.inv(many) * scale
    assert np.abs(ours - lapack).max() <= 1e-10 * np.abs(lapack).max()


@examples(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), p=st.integers(1, 12), k=st.integers(1, 70))
def test_bits_are_those_of_one_matrix_by_itself(seed, p, k):
    many = _matrices(seed, k, p)
    many[::5, -1] = many[::5, 0]  # some without an inverse
    many[::5, :, -1] = many[::5, :, 0]
    vectors = np.random.default_rng(seed).normal(size=(k, p))
    whole = portable_algebra.inverse(many)
    product, sums = (
        portable_algebra.times(whole, vectors),
        portable_algebra.dot(whole[:, 0], vectors),
    )
    i = seed % k
    assert _bits(whole[i]) == _bits(_slow_inverse(many[i]))
    among = np.random.default_rng(seed).permutation(k)
    assert _bits(portable_algebra.inverse(many[among])) == _bits(whole[among])
    assert _bits(portable_algebra.inverse(np.asfortranarray(many))) == _bits(whole)
    slow = [functools.reduce(operator.add, (row * vectors[i]).tolist()) for row in whole[i]]
    assert _bits(product[i]) == _bits(np.array(slow))
    assert _bits(sums[i]) == _bits(np.array(slow[0]))


@examples(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), p=st.integers(1, 90), k=st.integers(1, 9))
def test_solutions_are_lapacks_and_bits_those_of_one_system_by_itself(seed, p, k):
    many = _matrices(seed, k, p)
    right = np.random.default_rng(seed).normal(size=(k, p, 2))
    whole = portable_algebra.solved(many, right)
    width = np.sqrt(np.diagonal(many, axis1=1, axis2=2))[:, :, None]
    lapack = np.linalg.solve(many, right)
    assert np.abs((whole - lapack) * width).max() <= 1e-9 * np.abs(lapack * width).max()
    i = seed % k
    assert _bits(portable_algebra.solved(many[i : i + 1], right[i : i + 1])[0]) == _bits(whole[i])
    assert _bits(portable_algebra.solved(np.asfortranarray(many), right)) == _bits(whole)
    if p <= 25:
        assert _bits(_slow_solution(many[i], right[i])) == _bits(whole[i])


def _slow_solution(matrix, right):
    """Elimination and substitution, one number after another."""
    a, b = [[float(v) for v in row] for row in matrix], [[float(v) for v in row] for row in right]
    p = len(a)
    for j in range(p):
        share = [a[j][i] / a[j][j] for i in range(p)]
        for i in range(j + 1, p):
            for n in range(j + 1, p):
                a[i][n] -= share[i] * a[j][n]
            b[i] = [x - share[i] * y for x, y in zip(b[i], b[j])]
    for j in reversed(range(p)):
        b[j] = [x / a[j][j] for x in b[j]]
        for i in range(j):
            b[i] = [x - a[i][j] * y for x, y in zip(b[i], b[j])]
    return np.array(b)


def test_a_system_without_a_solution_has_none():
    bad = np.array([[[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [1.0, 2.0]]])
    found = portable_algebra.solved(bad, np.ones((2, 2, 1)))
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


def test_matrices_stay_as_they_are():
    one = np.full((3, 1, 1), 4.0)  # their layout is the one that is worked in
    portable_algebra.inverse(one)
    assert (one == 4.0).all()


def test_without_an_inverse_there_is_none():
    good = np.array([[2.0, 1.0], [1.0, 2.0]])
    for bad in ([[1, 1], [1, 1]], [[0, 0], [0, 1]], [[1, 2], [2, 1]], [[np.nan, 0], [0, 1]]):
        found = portable_algebra.inverse(np.array([good, bad]))
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1]).all()
    step, gain, error = fit.newton_step(np.ones((1, 2)), np.zeros((1, 2, 2)))
    assert np.isnan([*step[0], *gain, *error[0]]).all()
