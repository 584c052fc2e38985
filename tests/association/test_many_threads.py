"""Kernels on all cores: the same bits with any number of threads, also asked side by side."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cupola.association import hardy_weinberg, kernels, many_threads
from cupola.association.bed import Bed, write_bed
from cupola.errors import PlanError

pytest.importorskip("numba")
VARIANTS, PEOPLE = 1003, 77


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """What all kernels say of the same calls, as a function."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("threads") / "a.bed"
    write_bed(path, rng.integers(0, 4, (VARIANTS, PEOPLE)).astype(np.uint8))
    bed = Bed(path, PEOPLE, VARIANTS)
    rows, chosen = bed.rows(slice(None)), rng.random((2, PEOPLE)) < 0.6
    two, one = rng.normal(size=(2, PEOPLE, 3))
    columns = np.column_stack([np.ones(PEOPLE), rng.normal(size=(PEOPLE, 3))])
    y, beta = rng.integers(0, 2, PEOPLE).astype(float), rng.normal(size=(VARIANTS, 5))
    counts = rng.integers(0, 300, (VARIANTS, 3))

    def all_of_them():
        return [
            kernels.genotype_counts(rows, chosen),
            kernels.allele_counts(bed, np.arange(VARIANTS), chosen),
            kernels.call_sums(rows, two, one),
            kernels.missing_sums(rows, two),
            *kernels.logistic_sums(rows, np.arange(PEOPLE), np.ones(PEOPLE), columns, y, beta),
            hardy_weinberg.many(counts),
        ]

    return all_of_them


def _bits(arrays):
    return [array.tobytes() for array in arrays]


def test_the_number_of_threads_changes_no_bit(computed, monkeypatch):
    monkeypatch.setenv(many_threads.SETTING, "1")
    alone = _bits(computed())
    for number in ("2", "3", "7"):
        monkeypatch.setenv(many_threads.SETTING, number)
        assert _bits(computed()) == alone


def test_cohorts_that_compute_side_by_side_share_the_threads(computed, monkeypatch):
    monkeypatch.setenv(many_threads.SETTING, "2")
    alone = _bits(computed())
    with ThreadPoolExecutor(4) as cohorts:
        for found in cohorts.map(lambda _: computed(), range(8)):
            assert _bits(found) == alone


def test_every_row_is_done_once_in_threads_of_their_own(monkeypatch):
    monkeypatch.setenv(many_threads.SETTING, "3")
    done, parts = np.zeros(1000, int), []

    def work(part):
        done[part] += 1
        parts.append(part)

    many_threads.over(1000, work)
    assert (done == 1).all()
    assert len(parts) == 3
    many_threads.over(10, work)  # too few to share out
    assert len(parts) == 4


def test_what_goes_wrong_in_a_thread_is_told(monkeypatch):
    monkeypatch.setenv(many_threads.SETTING, "2")

    def work(part):
        if part.start:
            raise ValueError("the second half")

    with pytest.raises(ValueError, match="second half"):
        many_threads.over(1000, work)


def test_the_default_is_the_cores_of_the_process(monkeypatch):
    monkeypatch.delenv(many_threads.SETTING, raising=False)
    if hasattr(os, "sched_getaffinity"):
        assert many_threads.threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("given", ["0", "-1", "many", ""])
def test_a_number_of_threads_that_is_none(monkeypatch, given):
    monkeypatch.setenv(many_threads.SETTING, given)
    with pytest.raises(PlanError, match="CUPOLA_THREADS"):
        many_threads.threads()
