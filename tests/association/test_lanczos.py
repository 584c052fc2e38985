"""Block Lanczos in portable arithmetic, beside the exact decomposition."""

import numpy as np
import pytest

from cupola.association.portable_algebra import eigen
from cupola.association.structure import lanczos
from cupola.association.structure.lanczos import Krylov


@pytest.mark.parametrize("p", [1, 2, 3, 8, 31, 60])
def test_eigenvalues_and_vectors_are_lapacks_but_for_rounding(p):
    rng = np.random.default_rng(p)
    x = rng.normal(size=(p, p))
    a = x @ x.T * 10.0 ** rng.integers(-6, 7)
    values, vectors = eigen(a)
    size = np.abs(a).max()
    np.testing.assert_allclose(values, np.linalg.eigh(a)[0][::-1], atol=1e-12 * p * size)
    np.testing.assert_allclose(a @ vectors, vectors * values, atol=1e-12 * p * size)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(p), atol=1e-12)


def test_eigenvalues_that_are_equal_zero_or_negative():
    values, vectors = eigen(np.diag([1.0, -5.0, 3.0, 3.0, 0.0]))
    np.testing.assert_allclose(values, [3, 3, 1, 0, -5])
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(5), atol=1e-15)
    np.testing.assert_allclose(eigen(np.ones((4, 4)))[0], [4, 0, 0, 0], atol=1e-15)
    assert (eigen(np.zeros((3, 3)))[0] == 0).all()


def _found(a, width, sums):
    known, block = Krylov((), np.zeros((0, 0))), lanczos.start(7, len(a), width)
    for _ in range(sums):
        known, block, left = known.more(block, a @ block)
        if block.shape[1] == 0:
            break
    return known, known.pairs(left)


def _matrix(rows, rank):
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rank, rows)) * np.linspace(3, 0.5, rank)[:, None]
    return x.T @ x


@pytest.mark.parametrize("width", [1, 2, 5, 12])
def test_components_and_residuals_are_true(width):
    a = _matrix(80, 60)
    known, ritz = _found(a, width, 1 + 36 // width)
    vectors = known.vectors(ritz.vectors[:, :4])
    true = np.sqrt(((a @ vectors - vectors * ritz.values[:4]) ** 2).sum(axis=0))
    np.testing.assert_allclose(true, ritz.residuals[:4], rtol=1e-5, atol=1e-9)
    exact = np.linalg.eigvalsh(a)[::-1]
    # Each interval of a residual's width holds an eigenvalue.
    assert all(np.abs(exact - v).min() <= r + 1e-9 for v, r in zip(ritz.values, ritz.residuals))
    basis = np.concatenate(known.blocks, axis=1)
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-12)


@pytest.mark.parametrize("width", [1, 7, 30])
def test_a_space_that_is_used_up_ends_with_the_exact_answer(width):
    a = _matrix(40, 11)
    known, ritz = _found(a, width, 40)
    assert sum(block.shape[1] for block in known.blocks) <= 40
    np.testing.assert_allclose(ritz.values[:11], np.linalg.eigvalsh(a)[::-1][:11], rtol=1e-9)
    assert ritz.residuals[:11].max() < 1e-6


def test_what_cannot_be_told_apart_is_not_determined():
    rng = np.random.default_rng(3)
    turned = np.linalg.qr(rng.normal(size=(60, 60)))[0]
    values = np.r_[50.0, 20.0, 20.0, 9.0, np.linspace(5, 1, 56)]
    _, ritz = _found(turned @ (values[:, None] * turned.T), 4, 8)
    assert ritz.determined(4).tolist() == [True, False, False, True]
    assert ritz.gaps(4)[0] == pytest.approx(0.6)


def test_the_start_is_drawn_by_counters():
    again = lanczos.start(7, 50, 3)
    np.testing.assert_array_equal(again, lanczos.start(7, 50, 3))
    assert not np.array_equal(again, lanczos.start(8, 50, 3))
    np.testing.assert_allclose(again.T @ again, np.eye(3), atol=1e-14)
