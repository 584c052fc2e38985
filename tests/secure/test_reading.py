"""What a site reads of a protocol's question is exactly well formed, or declined."""

import numpy as np
import pytest

from cupola.federation import Declined, Question
from cupola.secure import reading

GOOD = {"sites": np.array([0, 2], np.int32), "rows": np.zeros((2, 3), np.uint8)}


def question(**arrays):
    return Question("pairwise shares", {**GOOD, **arrays})


def test_what_is_well_formed_is_read():
    assert reading.options_of(Question("x", {}, {"hidden": {"a": 1}})) == {"a": 1}
    assert reading.whole_in({"a": 3}, "a", 3) == 3
    assert reading.hash_in({"a": "00" * 32}, "a") == bytes(32)
    assert reading.sites_in(question(), "sites", 3) == (0, 2)
    assert reading.rows_in(question(), "rows", 2, 3) == (bytes(3), bytes(3))


@pytest.mark.parametrize("hidden", [None, "text", [1], 3])
def test_options_are_a_table(hidden):
    with pytest.raises(Declined, match="well formed"):
        reading.options_of(Question("x", {}, {"hidden": hidden}))


@pytest.mark.parametrize("value", [None, True, -1, 4, 1.0, "1"])
def test_numbers_are_whole_and_bounded(value):
    with pytest.raises(Declined, match="well formed"):
        reading.whole_in({"a": value}, "a", 3)


@pytest.mark.parametrize("value", [None, 3, "zz", "00" * 31, "00" * 33, ""])
def test_hashes_have_32_bytes(value):
    with pytest.raises(Declined, match="well formed"):
        reading.hash_in({"a": value}, "a")


@pytest.mark.parametrize(
    "sites",
    [[2, 0], [0, 0], [0, 3], [-1, 0], [[0, 2]], 0],
)
def test_sites_are_distinct_in_order_and_there(sites):
    asked = question(sites=np.array(sites, np.int32))
    with pytest.raises(Declined, match="well formed"):
        reading.sites_in(asked, "sites", 3)


@pytest.mark.parametrize(("count", "width"), [(1, 3), (2, 2), (3, 2)])
def test_rows_have_their_shape(count, width):
    with pytest.raises(Declined, match="well formed"):
        reading.rows_in(question(), "rows", count, width)


@pytest.mark.parametrize("name", ["sites", "nothing"])
def test_arrays_are_there_and_of_their_type(name):
    with pytest.raises(Declined, match="well formed"):
        reading.rows_in(question(sites=np.zeros((2, 3), np.int32)), name, 2, 3)
