"""Integers stand for numbers to the stated bits, for any shape, bound, weight and subset."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cupola.errors import FederationError
from cupola.federation import Declined
from cupola.secure.encoding import (
    Entry,
    OutOfRange,
    decode,
    encode,
    entry,
    layout_hash,
    outline,
    outline_from_json,
)

quick = settings(max_examples=60, deadline=None, derandomize=True)
SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
BITS = st.sampled_from([16, 32, 64])
BOUNDS = st.floats(1e-250, 1e250) | st.floats(0.01, 100) | st.just(0.0)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


def reference(place, array, weight):
    """Rational arithmetic, number by number: the product in float64, then exact."""
    with np.errstate(over="ignore"):
        products = (array.astype(np.float64) * np.float64(weight)).reshape(-1)
    return [round(Fraction(float(p)) * Fraction(2) ** place.fraction) for p in products]


@given(st.data(), SHAPES, BOUNDS, st.integers(1, 10_000), BITS, st.sampled_from("efd"))
@quick
def test_floats_are_rounded_to_the_nearest_integer(data, shape, bound, sites, bits, kind):
    place = entry("x", shape, "float", bound, sites, bits)
    weight = data.draw(st.sampled_from([0.0, 1.0, 0.25, 3.0, 1e-9, 12345.678, -1.0]))
    largest = min(bound / abs(weight) if weight else 1.0, float(np.finfo(kind).max))
    largest *= 0.999  # the product must not be rounded beyond the bound
    unit = data.draw(arrays(np.float64, shape, elements=st.floats(-1, 1)))
    with np.errstate(all="ignore"):
        array = (unit * largest).astype(kind)
    integers = encode(place, array, weight)
    assert integers.dtype == np.dtype(f"int{bits}")
    assert integers.tolist() == reference(place, array, weight)
    assert sites * max((abs(z) for z in integers.tolist()), default=0) < 2 ** (bits - 1)


@given(st.data(), SHAPES, BOUNDS, st.integers(1, 6), BITS)
@quick
def test_totals_of_floats_err_by_the_stated_bits(data, shape, bound, sites, bits):
    place = entry("x", shape, "float", bound, sites, bits)
    unit = arrays(np.float64, shape, elements=st.floats(-1, 1))
    values = [data.draw(unit) * bound for _ in range(sites)]
    total = np.zeros(place.size, place.dtype)
    for value in values:
        total += encode(place, value)
    found = decode(place, total)
    exact = [
        sum(map(Fraction, column)) for column in zip(*(v.reshape(-1).tolist() for v in values))
    ]
    assert found.shape == shape
    assert found.dtype == np.float64
    allowed = Fraction(place.error) * (1 + Fraction(1, 2**50))
    allowed += Fraction(sites * bound) / 2**53  # float64's own rounding of the total
    assert all(abs(Fraction(f) - e) <= allowed for f, e in zip(found.reshape(-1).tolist(), exact))


@given(BOUNDS, st.integers(1, 10_000), BITS)
@quick
def test_the_fraction_is_the_largest_that_fits(bound, sites, bits):
    place = entry("x", (), "float", bound, sites, bits)
    if bound > 0 and place.fraction < 1000:
        with pytest.raises(FederationError, match="fit"):
            Entry("x", (), "float", bits, place.fraction + 1, bound, sites)


@given(
    st.data(),
    SHAPES,
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "bool"]),
    st.integers(0, 1000),
    st.integers(1, 1000),
)
@quick
def test_integers_are_exact(data, shape, kind, weight, sites):
    array = data.draw(arrays(kind, shape))
    flat = [int(v) * weight for v in array.reshape(-1).tolist()]
    bound = float(max((abs(v) for v in flat), default=0))
    if bound < max((abs(v) for v in flat), default=0):
        bound = math.nextafter(bound, math.inf)
    name = "bool" if kind == "bool" else "int"
    if sites * math.floor(bound + 0.5) >= 2**63:
        with pytest.raises(FederationError, match="lower its bound"):
            entry("x", shape, name, bound, sites)
        return
    place = entry("x", shape, name, bound, sites)
    assert encode(place, array, weight).tolist() == flat
    total = np.zeros(place.size, place.dtype)
    for _ in range(min(sites, 5)):
        total += encode(place, array, float(weight))
    found = decode(place, total)
    assert found.dtype == (np.int64 if sites * Fraction(bound) >= 2**53 else np.float64)
    assert found.reshape(-1).tolist() == [v * min(sites, 5) for v in flat]


def test_the_smallest_modulus_is_chosen_for_integers():
    assert entry("n", (), "int", 3276, 10).bits == 16
    assert entry("n", (), "int", 3277, 10).bits == 32
    assert entry("n", (), "bool", 1, 2**31 - 1).bits == 32
    assert entry("n", (), "float", 1.0, 10).bits == 64
    assert entry("n", (), "float", 1.0, 10).fraction == 59


def test_integers_with_broken_weights_are_rounded_half_to_even():
    place = entry("n", (4,), "int", 10, 3)
    assert encode(place, np.array([1, 3, 5, -3]), 0.5).tolist() == [0, 2, 2, -2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.0001, -1.0001, 1e300])
@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_what_is_out_of_range_is_refused_before_encoding(bad, bits, kind):
    place = entry("update", (40_000,), "float", 1.0, 10, bits)
    for where in (0, 20_000, 39_999):
        with np.errstate(over="ignore"):
            array = np.zeros(40_000)
            array[where] = bad
            array = array.astype(kind)
        with pytest.raises(OutOfRange) as refused:
            encode(place, array)
        assert isinstance(refused.value, Declined)
        assert refused.value.code == "array 'update' exceeds its agreed bound 1, or holds NaN"
    edge = np.full(40_000, -1.0, kind)
    assert encode(place, edge)[0] == -round(2.0**place.fraction)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_weights_must_be_finite(weight):
    for kind, array in (("float", np.zeros(2)), ("int", np.zeros(2, int))):
        with pytest.raises(OutOfRange):
            encode(entry("x", (2,), kind, 1, 3), array, weight)


@pytest.mark.parametrize(("array", "weight"), [(-(2**63), 1), (2**62, 2), (1, 10**30), (3, -1)])
def test_integers_out_of_range_are_refused(array, weight):
    with pytest.raises(OutOfRange):
        encode(entry("n", (1,), "int", 2, 3), np.array([array]), weight)


@given(st.sampled_from([1e-300, 1e300, 2.0**-1074, 2.0**1023]), st.booleans())
@quick
def test_extreme_weights_lose_nothing(weight, tiny_bound):
    bound = 2.0**-960 if tiny_bound else 1.0
    place = entry("x", (1,), "float", bound, 3)
    value = np.array([0.7 * bound / weight])
    if not np.isfinite(value[0]):
        value = np.array([1e300])
    with np.errstate(all="ignore"):
        product = float(value[0] * weight)
    if abs(product) <= bound:
        assert encode(place, value, weight).tolist() == reference(place, value, weight)


def test_arrays_must_be_what_was_agreed():
    place = entry("x", (2, 3), "float", 1.0, 3)
    for array in (np.zeros((3, 2)), np.zeros(6), np.zeros((2, 3), int), np.zeros((2, 3), complex)):
        with pytest.raises(FederationError, match="agreed was float"):
            encode(place, array)
    with pytest.raises(FederationError, match="another type or size"):
        decode(place, np.zeros(6, np.int32))
    with pytest.raises(FederationError, match="another type or size"):
        decode(place, np.zeros(5, np.int64))


def test_orders_of_memory_do_not_matter():
    place = entry("x", (3, 4), "float", 100.0, 3)
    array = np.arange(12.0).reshape(3, 4)
    assert (encode(place, np.asfortranarray(array)) == encode(place, array)).all()
    assert (encode(place, array[::-1]) == encode(place, array[::-1].copy())).all()


@pytest.mark.parametrize(
    ("facts", "way_out"),
    [
        (("x", (2,), "float", 1.0, 40_000, 16), "raise its bits"),
        (("x", (2,), "int", 1e6, 3, 16), "lower its bound or raise its bits"),
        (("x", (2,), "int", 1e30, 3), "lower its bound"),
        (("x", (2,), "float", math.nan, 3), "finite"),
        (("x", (2,), "float", math.inf, 3), "finite"),
        (("x", (2,), "float", -1.0, 3), "finite"),
        (("x", (2,), "float", 1.0, 0), "at least 1"),
        (("x", (2,), "complex", 1.0, 3), "kinds are"),
        (("x", (-2,), "float", 1.0, 3), "sizes"),
        (("x", (2**40, 2**40), "float", 1.0, 3), "sizes"),
        (("", (2,), "float", 1.0, 3), "name"),
        (("a\nb", (2,), "float", 1.0, 3), "name"),
        (("\ud800", (2,), "float", 1.0, 3), "name"),
        (("x", (2,), "float", 1.0, 3, 24), "16, 32 or 64"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(facts, way_out):
    with pytest.raises(FederationError, match=way_out):
        entry(*facts)


@given(st.lists(st.tuples(SHAPES, BOUNDS, BITS), max_size=4))
@quick
def test_outlines_survive_json(facts):
    layout = tuple(entry(f"a{i}", s, "float", b, 7, bits) for i, (s, b, bits) in enumerate(facts))
    assert layout_hash(layout) == layout_hash(outline(layout))
    assert outline_from_json(json.loads(json.dumps(outline(layout)))) == outline(layout)


def test_the_hash_tells_layouts_apart():
    outlines = [
        (),
        (("a", 32, 10),),
        (("a", 64, 10),),
        (("a", 32, 11),),
        (("b", 32, 10),),
        (("a", 32, 10), ("b", 32, 10)),
        (("b", 32, 10), ("a", 32, 10)),
    ]
    assert len({layout_hash(o) for o in outlines}) == len(outlines)


@pytest.mark.parametrize(
    "facts",
    [
        ("x", (2,), "float", 64, 90, 1.0, 3),
        ("x", (2,), "int", 64, 1, 1.0, 3),
        ("x", (2,), "float", 64, 0, 10**400, 3),
        ("x", (True,), "float", 64, 0, 1.0, 3),
        ("x", ("1", "2"), "float", 64, 0, 1.0, 3),
        ("x", (2**62,), "float", 64, 0, 1.0, 3),
        ("x", (2,), ["float"], 64, 0, 1.0, 3),
        ("x", (2,), "float", 64, 10**30, 1.0, 3),
    ],
)
def test_an_entry_that_cannot_be_is_refused(facts):
    with pytest.raises(FederationError):
        Entry(*facts)


@given(JSON)
@example([["x", 64, 2], ["x", 64, 2]])
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_outline_raises_nothing_but_the_declared_error(value):
    try:
        made = outline_from_json(value)
    except FederationError:
        return
    assert made == () or value not in ([], {}, "")


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(), st.integers()).map(list), max_size=3))
@quick
def test_fuzzed_outlines_raise_nothing_but_the_declared_error(value):
    try:
        made = outline_from_json(value)
    except FederationError:
        return
    assert [list(part) for part in made] == value
