"""The compiled kernels compute what the reference says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cupola.association import kernels, reference
from cupola.association.bed import Bed, packed, unpacked, write_bed

pytest.importorskip("numba")


def _rows(seed, variants, people, missing=0.1):
    rng = np.random.default_rng(seed)
    p = [(1 - missing) / 3, missing, (1 - missing) / 3, (1 - missing) / 3]
    calls = rng.choice(4, (variants, people), p=p).astype(np.uint8)
    rows = packed(calls)
    whole = np.zeros((variants, -(-rows.shape[1] // 8) * 8), np.uint8)
    whole[:, : rows.shape[1]] = rows
    return calls, whole, rng


@examples(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), variants=st.integers(1, 9), people=st.integers(1, 77))
def test_kernels_equal_the_reference(seed, variants, people):
    calls, rows, rng = _rows(seed, variants, people)
    assert (unpacked(rows, people) == calls).all()
    chosen = rng.random((3, people)) < 0.6
    assert (kernels.genotype_counts(rows, chosen) == reference.genotype_counts(rows, chosen)).all()
    two, one = rng.normal(size=(2, people, 3))
    np.testing.assert_allclose(
        kernels.call_sums(rows, two, one), reference.call_sums(rows, two, one), atol=1e-12
    )
    np.testing.assert_allclose(
        kernels.missing_sums(rows, two), reference.missing_sums(rows, two), atol=1e-12
    )
    half = np.where((calls == 2) & chosen[0], 1, calls)
    assert (unpacked(kernels.without_half_calls(rows, chosen[0]), people) == half).all()
    index = np.flatnonzero(chosen[1])
    columns = np.column_stack([np.ones(len(index)), rng.normal(size=(len(index), 3))])
    y = rng.integers(0, 2, len(index)).astype(float)
    facts = (rows, index, rng.choice([0.5, 1.0], len(index)), columns, y)
    beta = rng.normal(size=(variants, 5))
    for ours, slow in zip(
        kernels.logistic_sums(*facts, beta), reference.logistic_sums(*facts, beta)
    ):
        np.testing.assert_allclose(ours, slow, rtol=1e-11, atol=1e-11)


def test_extreme_predictors_neither_overflow_nor_vanish():
    _, rows, _ = _rows(1, 2, 8)
    facts = (rows, np.arange(8), np.ones(8), np.ones((8, 1)), np.tile([0.0, 1.0], 4))
    gradient, information, _ = kernels.logistic_sums(*facts, np.array([[800.0, 0], [-800.0, 0]]))
    assert np.isfinite(gradient).all()
    assert (information >= 0).all()


def test_calls_missing_by_person(tmp_path):
    calls, _, _ = _rows(3, 40, 13)
    write_bed(tmp_path / "a.bed", calls)
    found = kernels.missing_by_person(Bed(tmp_path / "a.bed", 13, 40))
    assert (found == (calls == 1).sum(axis=0)).all()


@examples(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), variants=st.integers(1, 99), people=st.integers(1, 77))
def test_alleles_are_counted_in_the_file(tmp_path_factory, seed, variants, people):
    calls, rows, rng = _rows(seed, variants, people)
    path = tmp_path_factory.mktemp("bed") / "a.bed"
    write_bed(path, calls)
    with path.open("r+b") as file:  # what is beyond the last person does not count
        file.seek(-1, 2)
        last = file.read(1)[0] | (0xFF << 2 * (people % 4 or 4)) & 0xFF
        file.seek(-1, 2)
        file.write(bytes([last]))
    index = np.flatnonzero(rng.random(variants) < 0.7)[: variants - 1]
    index = np.append(index, variants - 1)
    chosen = rng.random((2, people)) < 0.6
    found = kernels.allele_counts(Bed(path, people, variants), index, chosen)
    assert (found == reference.allele_counts(rows[index], chosen)).all()


def test_a_mapped_file_is_given_back_and_read_again(tmp_path, monkeypatch):
    """With room for a few rows: the counts are those of the whole file, which stays unchanged."""
    calls, _, rng = _rows(4, 9001, 41)
    write_bed(tmp_path / "a.bed", calls)
    before = (tmp_path / "a.bed").read_bytes()
    chosen = rng.random((2, 41)) < 0.6
    whole = kernels.allele_counts(Bed(tmp_path / "a.bed", 41, 9001), np.arange(9001), chosen)
    for module in ("kernels", "bed"):
        monkeypatch.setattr(f"cupola.association.{module}.MAPPED", 50)
    bed = Bed(tmp_path / "a.bed", 41, 9001)
    assert (kernels.allele_counts(bed, np.arange(9001), chosen) == whole).all()
    assert (unpacked(bed.rows(slice(8000, 9001)), 41) == calls[8000:]).all()
    some = rng.permutation(9001)[:50]
    assert (unpacked(bed.rows(some), 41) == calls[some]).all()
    assert (unpacked(bed.rows(slice(None)), 41) == calls).all()
    assert len(bed.rows(slice(5, 5))) == 0
    assert (tmp_path / "a.bed").read_bytes() == before
