"""The compiled Hardy-Weinberg test has the reference's bits, and takes no time."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cupola.association import hardy_weinberg


def _reference(counts):
    return np.array([hardy_weinberg.exact(*row) for row in counts.tolist()])


@examples(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 400)] * 3), min_size=1, max_size=8))
def test_any_counts_have_the_same_bits(rows):
    pytest.importorskip("numba")
    counts = np.array(rows)
    assert hardy_weinberg.many(counts).tobytes() == _reference(counts).tobytes()


@pytest.mark.parametrize("people", [1, 2, 3, 50, 5_000, 300_000])
def test_cohorts_of_any_size_have_the_same_bits(people):
    """In equilibrium and far from it, common and rare, and at the ends."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(people)
    p, inbred = rng.uniform(0, 1, (2, 60))
    p[::3] **= 4
    inbred[::2] = 0
    share = np.stack([p**2 + inbred * p * (1 - p), 2 * p * (1 - p) * (1 - inbred),
                      (1 - p) ** 2 + inbred * p * (1 - p)], axis=1)  # fmt: skip
    counts = np.array([rng.multinomial(people, row / row.sum()) for row in share])
    ends = [[people, 0, 0], [0, people, 0], [0, 0, people], [0, 0, 0], [1, people - 1, 0]]
    counts = np.concatenate([counts, ends])
    found = hardy_weinberg.many(counts)
    assert found.tobytes() == _reference(counts).tobytes()
    assert ((found >= 0) & (found <= 1)).all()
    assert found[-2] == 1


def test_without_numba_the_reference_answers(monkeypatch):
    counts = np.array([[30, 40, 30], [1, 50, 2]])
    found = hardy_weinberg.many(counts)
    monkeypatch.setattr(hardy_weinberg, "has_numba", lambda: False)
    assert hardy_weinberg.many(counts).tobytes() == found.tobytes()


def test_three_hundred_thousand_people_take_a_fraction_of_a_millisecond_each():
    pytest.importorskip("numba")
    p = np.linspace(0.01, 0.5, 2000)
    counts = np.rint(300_000 * np.stack([p**2, 2 * p * (1 - p), (1 - p) ** 2], axis=1))
    hardy_weinberg.many(counts[:1])
    start = time.process_time()
    hardy_weinberg.many(counts)
    assert time.process_time() - start < 1.0  # some 0.04 s; the reference takes 5 s
