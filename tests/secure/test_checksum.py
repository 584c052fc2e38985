"""Checksums are exact, linear, and notice what was changed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.errors import FederationError
from cupola.secure.checksum import (
    COLUMNS,
    P,
    _coefficients,
    _whole,
    checksum,
    from_bytes,
    reference,
    to_bytes,
)

KEY = bytes(range(32))
quick = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("kind", ["int16", "int32", "int64"])
@pytest.mark.parametrize(
    "size", [0, 1, 31, 32, 33, 500, COLUMNS - 1, COLUMNS, COLUMNS + 1, 66 * COLUMNS + 7]
)
def test_the_fast_way_is_exact(kind, size):
    limits = np.iinfo(kind)
    numbers = np.random.default_rng(size).integers(
        limits.min, limits.max, size, dtype=kind, endpoint=True
    )
    lowest, highest = np.full(size, limits.min, kind), np.full(size, limits.max, kind)
    for integers in (numbers, lowest, highest):
        assert checksum(KEY, "x", integers) == reference(KEY, "x", integers)


@pytest.mark.parametrize("fill", [-1, 2**32 - 1, -(2**32) + 1, 2**63 - 1, -(2**63)])
def test_the_fast_way_is_exact_at_the_limits_of_float64(fill):
    """All pieces as large as they get, in every column and over many rows of sums."""
    integers = np.full(40 * COLUMNS + 3, fill, np.int64)
    assert checksum(KEY, "x", integers) == reference(KEY, "x", integers)


def test_many_rows_are_added_up_in_blocks(monkeypatch):
    from cupola.secure import checksum as module

    integers = np.random.default_rng(3).integers(-(2**62), 2**62, 50 * COLUMNS + 9)
    whole = checksum(KEY, "x", integers)
    monkeypatch.setattr(module, "_MANY", 16)
    monkeypatch.setattr(module, "_BLOCK", 5)
    assert checksum(KEY, "x", integers) == whole == reference(KEY, "x", integers)


@given(st.lists(st.tuples(*[st.integers(-(2**61), 2**61)] * 3), max_size=10))
@quick
def test_checksums_add_up(rows):
    sites = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    total = sum(checksum(KEY, "x", np.ascontiguousarray(site)) for site in sites) % P
    assert total == checksum(KEY, "x", sites.sum(axis=0))


@given(st.integers(0, 2999), st.integers(1, 2**64 - 1))
@quick
def test_any_change_of_a_total_is_noticed(where, change):
    integers = np.random.default_rng(1).integers(-(2**40), 2**40, 3000)
    changed = integers.copy()
    changed.view(np.uint64)[where : where + 1] += np.uint64(change)  # wraps without a warning
    assert checksum(KEY, "x", changed) != checksum(KEY, "x", integers)


def test_a_swap_is_noticed_within_and_between_rows():
    integers = np.arange(5 * COLUMNS)
    right = checksum(KEY, "x", integers)
    for a, b in ((0, 1), (0, COLUMNS), (7, 3 * COLUMNS + 9)):
        swapped = integers.copy()
        swapped[[a, b]] = swapped[[b, a]]
        assert checksum(KEY, "x", swapped) != right


def test_the_coefficients_depend_on_key_and_name():
    integers = np.arange(1000)
    found = {checksum(k, n, integers) for k in (KEY, bytes(32)) for n in ("x", "y")}
    assert len(found) == 4
    rows, columns = _coefficients(KEY, "x", "rows", 300), _coefficients(KEY, "x", "columns", 300)
    assert (rows != columns).any()
    assert (_coefficients(KEY, "x", "rows", 2, 1) == rows[1:3]).all()
    assert rows.min() >= 0
    assert rows.max() == 2**11 - 1
    assert max(_whole(rows)) < 2**132
    assert len({whole % P for whole in _whole(rows)}) == 300


@given(st.integers(0, P - 1))
@quick
def test_residues_survive_a_message(residue):
    assert from_bytes(to_bytes(residue)) == residue


@pytest.mark.parametrize(
    "bad",
    [np.zeros(15, np.uint8), np.zeros(16, np.int8), np.full(16, 255, np.uint8), to_bytes(P)],
)
def test_what_is_no_residue_is_refused(bad):
    with pytest.raises(FederationError):
        from_bytes(bad)


def test_strided_integers_are_taken_as_they_are_read():
    integers = np.arange(4000)
    assert checksum(KEY, "x", integers[::2]) == reference(KEY, "x", integers[::2].copy())
    assert checksum(KEY, "x", integers[::-1]) == reference(KEY, "x", integers[::-1].copy())


def test_only_flat_integers_have_checksums():
    for array in (np.zeros(3), np.zeros((2, 2), np.int64), np.zeros(3, np.uint8)):
        with pytest.raises(FederationError):
            checksum(KEY, "x", array)
