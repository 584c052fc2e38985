"""Centred genotypes of markers: products by blocks equal those of the whole matrix."""

import numpy as np
import pytest
from cohorts import people, sites, study, write

from cupola.association import kernels
from cupola.association.portable_algebra import combined, products, total
from cupola.association.structure import centred
from cupola.association.structure.centred import Centred


@pytest.fixture
def made(tmp_path):
    data = people(3, n=61, m=40, missing=0.1)
    cohort = sites(study("linear"), [write(tmp_path, "c", data)])[0].cohort
    rng = np.random.default_rng(1)
    local = rng.permutation(40)[:33]
    swapped = rng.random(33) < 0.4
    mean = rng.uniform(0.1, 1.9, 33)
    who = np.sort(rng.permutation(61)[:50])
    copies = data.copies[local][:, who].astype(float)
    copies[swapped] = np.where(copies[swapped] == 3, 3, 2 - copies[swapped])
    whole = np.where(copies == 3, 0.0, copies - mean[:, None]).T
    return Centred(cohort, local, swapped, mean, who), whole


@pytest.mark.parametrize("numba", [True, False])
def test_products_by_blocks_equal_those_of_the_whole_matrix(made, numba, monkeypatch):
    ours, x = made
    monkeypatch.setattr(centred, "_NUMBERS", 300)  # several blocks, the last one short
    monkeypatch.setattr(centred, "has_numba", lambda: numba and kernels.has_numba())
    rng = np.random.default_rng(2)
    a, v = rng.normal(size=(33, 4)), rng.normal(size=(50, 3))
    np.testing.assert_allclose(ours.times(a), x @ a, atol=1e-12)
    np.testing.assert_allclose(ours.transposed(v), x.T @ v, atol=1e-12)
    np.testing.assert_allclose(ours.gram(a), x.T @ (x @ a), atol=1e-11)
    np.testing.assert_allclose(ours.squares(), (x**2).sum(axis=0), atol=1e-12)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 1000])
def test_portable_products_of_tall_matrices(rows):
    rng = np.random.default_rng(rows)
    a, b = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 5))
    np.testing.assert_allclose(total(b), b.sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(products(a, b), a.T @ b, atol=1e-12)
    np.testing.assert_allclose(combined(a, a[:3] if rows > 2 else np.eye(3)),
                               a @ (a[:3] if rows > 2 else np.eye(3)), atol=1e-12)  # fmt: skip
    np.testing.assert_array_equal(products(a, b), products(np.asfortranarray(a), b[:, ::1]))
