"""Counter-based randomness: known answers, independence of order, uniformity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.base.randomness import (
    _permutations,
    derive,
    generator,
    permutation,
    permutations,
    philox,
    torch_generator,
    uniforms,
)


@pytest.mark.parametrize(
    ("word", "key", "answer"),
    [  # known answers of the Random123 library
        (0, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (0xFFFFFFFF, (0xFFFFFFFF,) * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ],
)
def test_philox_known_answers(word, key, answer):
    assert philox(np.full(4, word, np.uint32), key).tolist() == answer


@given(
    st.integers(0, 2**40),
    st.integers(0, 2**33),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 60)), max_size=8),
)
def test_together_as_alone(seed, round, rows):
    sites, sizes = [s for s, _ in rows], [n for _, n in rows]
    for order, site, size in zip(permutations(seed, "p", round, sites, sizes), sites, sizes):
        assert (order == permutation(seed, "p", round, site, size)).all()
        assert sorted(order) == list(range(size))


def test_compiled_shuffles_are_the_same():
    pytest.importorskip("numba", reason="shuffles are compiled where numba is installed")
    random = np.random.default_rng(0)
    for most in (0, 1, 3, 9, 200, 5000):
        for round in (0, 7, 2**32, 2**40 + 3):
            sizes = random.integers(0, most + 1, 1 + most % 17)
            sites = random.integers(0, 2**33, len(sizes))
            fast = permutations(most, "p", round, sites, sizes)
            for one, other in zip(fast, _permutations(most, "p", round, sites, sizes), strict=True):
                assert one.dtype == other.dtype
                assert (one == other).all()
    large = permutations(1, "p", 0, [5], [3 << 20])[0]  # more keys than buckets, and equal ones
    assert (large == _permutations(1, "p", 0, np.array([5]), np.array([3 << 20]))[0]).all()
    assert permutations(1, "p", 0, [], []) == []


def test_every_part_of_the_name_matters():
    names = [(1, "a", 0, 0), (2, "a", 0, 0), (1, "b", 0, 0), (1, "a", 1, 0), (1, "a", 0, 1)]
    assert len({derive(*name) for name in names}) == len(names)
    assert len({generator(*name).random() for name in names}) == len(names)
    assert len({torch_generator(*name).initial_seed() for name in names}) == len(names)


def test_uniforms_are_uniform():
    values = uniforms(1, "u", 3, range(20000), 2)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values[:, 0], 20)[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-square, 19 degrees; p = 1e-4
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.03


def test_permutations_are_uniform():
    orders = np.array(permutations(1, "p", 0, range(6000), [3] * 6000))
    counts = np.unique(orders @ [9, 3, 1], return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 25


@given(st.integers(0, 2**70), st.text(max_size=5), st.integers(0, 2**40), st.integers(0, 2**31))
def test_single_numbers_come_from_the_same_stream(seed, purpose, round, site):
    word = uniforms(seed, purpose, round, [site])[0, 0]
    assert derive(seed, purpose, round, site) >> 10 == int(word * 2**53)
